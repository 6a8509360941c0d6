"""PRECISEBN in a run of the command line on real clips: the statistics of the weights that are saved."""

import numpy as np

from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Evaluator
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.loader import build_loader
from paddlevideo_fast.modeling import load_weights, read_weights
from tests.support.launching import overriding


def test_a_checkpoint_holds_the_statistics_of_the_training_data(run_main, tiny_config, tmp_path):
    options = [
        "DATASET.batch_size=7",
        "DATASET.num_workers=1",
        "epochs=1",
        "PRECISEBN={preciseBN_interval: 2}",
    ]
    run_main(tiny_config, *overriding(*options))
    saved = tmp_path / "out" / "tiny_epoch_00001.pdparams"
    weights = read_weights(saved)

    setup = training_setup(plan_run(RunSpec.for_training(load_config(tiny_config, options))))
    load_weights(setup.model, str(saved), strict=True)
    loader = build_loader(
        setup.split.dataset, batch_size=7, num_workers=0, shuffle=True, drop_last=False, seed=1234
    )
    assert [len(batch) for batch in loader.epoch(1)] == [7, 7, 7, 3]  # training itself leaves the last out
    found = population_statistics(Evaluator(loader, setup.split.preprocess), setup.model, epoch=1)
    assert len(found) > 5
    for name, (mean, variance) in found.items():
        for key, value in (("_mean", mean), ("_variance", variance)):
            saved_value = weights[f"{name}.{key}"]
            np.testing.assert_allclose(saved_value, value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
