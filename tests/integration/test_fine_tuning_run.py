"""A run of the command line that starts from other classes, freezes, frees, and recomputes."""

import shutil

import numpy as np
import pytest

from paddlevideo_fast.modeling import read_weights
from tests.support.launching import overriding

OPTIONS = (
    "validate=false",
    "max_iters=2",
    "FINETUNE={freeze: [stem, res2], unfreeze_at: 1}",
    "OPTIMIZER.layer_decay=0.5",
    "RUNTIME.recompute=true",
    "EMA={decay: 0.9}",
    "MODEL.head.num_classes=5",
)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Files of the names of the classes of the first run and of the second."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "old.txt").write_text("left\nright\nup\ndown\n")
    (folder / "new.txt").write_text("up\nround\ndown\nright\nstill\n")
    return folder


def test_a_run_from_a_checkpoint_of_other_classes(tiny_config, run_main, tmp_path, names):
    old, new = (f"DATASET.class_names={names / file}" for file in ("old.txt", "new.txt"))
    run_main(tiny_config, *overriding("epochs=1", "max_iters=1", "validate=false", old))
    weights = tmp_path / "out" / "tiny_epoch_00001.pdparams"
    assert (tmp_path / "out" / "class_names.txt").read_text() == (names / "old.txt").read_text()
    arguments = [*overriding(*OPTIONS, new), "-w", str(weights)]
    runs = {}
    for name, further in {"whole": [], "cut": ["epochs=1"]}.items():
        output = f"output_dir={tmp_path / name}"
        runs[name] = run_main(tiny_config, *arguments, *overriding(output, *further))
    told = runs["whole"].stdout + runs["whole"].stderr
    assert "weights from " in told
    assert "kept 3 of 5 classes by name; 2 start anew" in told
    assert "frozen: stem, res2, 0.00 M of 0.02 M parameters, until epoch 1 ends" in told
    assert "learning rate: stem frozen, res2 frozen, res3 0.125, res4 0.25, res5 0.5, head 5 to 10" in told
    assert "epoch 2: 12 more parameter tensors train from here on" in told
    warning = "FINETUNE.unfreeze_at: the run ends after 1 epochs, so some parts never train"
    assert warning in runs["cut"].stdout + runs["cut"].stderr
    run_main(tiny_config, *overriding(*OPTIONS, new, f"output_dir={tmp_path / 'cut'}", "resume=auto"))
    start, frozen = (read_weights(path) for path in (weights, tmp_path / "cut" / "tiny_epoch_00001.pdparams"))
    for key in ("backbone.conv._conv.weight", "backbone.res2a.conv0._batch_norm._variance"):
        np.testing.assert_array_equal(frozen[key], start[key])
    ends = [read_weights(tmp_path / name / "tiny_epoch_00002.pdparams") for name in ("whole", "cut")]
    for key, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][key], value, key)
    assert (ends[0]["backbone.conv._conv.weight"] != start["backbone.conv._conv.weight"]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["FINETUNE={freeze: [stem, layer1]}"],
            "FINETUNE.freeze.1=layer1: fits no stage (stem, res2, res3, res4, res5, head) and no name of a "
            "parameter; a name may have * in it, as in backbone.*.bias",
        ),
        (["RUNTIME.recompute=[res7]"], "RUNTIME.recompute.0=res7: no such stage; the stages are stem, res2"),
        (
            ["RUNTIME.recompute=true", "to_static=true"],
            "RUNTIME.recompute: it is for dynamic graphs; take to_static or it out",
        ),
    ],
)
def test_wrong_settings_are_one_sentence_with_their_place(tiny_config, assert_refused, options, message):
    assert_refused(tiny_config, f"-o #1  {message}", *options)


def test_a_list_of_names_beside_the_weights_that_does_not_fit(
    finished_run, tiny_config, tmp_path, names, assert_refused
):
    weights = tmp_path / "tiny.pdparams"  # the mark beside a checkpoint says the names, too
    shutil.copy(finished_run / "tiny_epoch_00001.pdparams", weights)
    (tmp_path / "class_names.txt").write_text("left\nright\n")
    new = f"DATASET.class_names={names / 'new.txt'}", "MODEL.head.num_classes=5", "validate=false"
    message = "class_names.txt: has 2 names, the model 4 classes"
    assert_refused(tiny_config, message, *new, flags=["-w", str(weights)])
