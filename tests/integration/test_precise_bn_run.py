"""PRECISEBN in runs of the command line on real clips: the statistics of the weights that are saved."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.loader import build_loader
from paddlevideo_fast.modeling import load_weights
from tests.support.launching import overriding


def inputs_of_batch_norms(model, batches):
    """All values that reach each batch norm, [values, channels] in float64, batches normalised one by one."""
    seen = {}
    norms = {name: each for name, each in model.named_sublayers() if isinstance(each, nn.BatchNorm2D)}

    def hook(name):
        def take(layer, inputs):
            seen.setdefault(name, []).append(
                np.moveaxis(inputs[0].numpy(), 1, -1).reshape(-1, layer._mean.size)
            )

        return take

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in norms.items()]
    model.train()
    with paddle.no_grad():
        for clips in batches:
            model(clips)
    for each in hooks:
        each.remove()
    return {name: np.concatenate(values).astype("float64") for name, values in seen.items()}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_checkpoint_holds_the_statistics_of_the_training_data(run_main, tiny_config, tmp_path, workers):
    options = ["DATASET.batch_size=7", f"DATASET.num_workers={workers}", "epochs=1"]
    options.append("PRECISEBN={preciseBN_interval: 2}")
    done = run_main(tiny_config, *overriding(*options))
    assert done.returncode == 0, done.stderr
    saved = tmp_path / "out" / "tiny_epoch_00001.pdparams"
    weights = {name: value.numpy() for name, value in paddle.load(str(saved)).items()}

    cfg = load_config(tiny_config, options)
    parts = training_setup(plan_run(RunSpec.for_training(cfg)))
    load_weights(parts.model, str(saved), strict=True)
    loader = build_loader(
        parts.split.dataset, batch_size=7, num_workers=0, shuffle=True, drop_last=False, seed=1234
    )
    batches = [parts.split.preprocess(batch.clips) for batch in loader.epoch(1)]
    assert [len(batch) for batch in batches] == [7, 7, 7, 3]  # training itself leaves the last out
    inputs = inputs_of_batch_norms(parts.model, batches)
    assert len(inputs) > 5
    for name, values in inputs.items():
        np.testing.assert_allclose(
            weights[f"{name}._mean"], values.mean(0), rtol=1e-4, atol=1e-5, err_msg=name
        )
        np.testing.assert_allclose(weights[f"{name}._variance"], values.var(0), rtol=1e-4, err_msg=name)


def test_a_resumed_run_is_the_same(run_main, tiny_config, tmp_path, assert_resumes):
    more = overriding("PRECISEBN={preciseBN_interval: 1, num_iters_preciseBN: 2}", "EMA={decay: 0.9}")
    assert run_main(tiny_config, *more).returncode == 0
    assert_resumes(tmp_path / "out", "tiny_epoch_00001", tiny_config, *more)
