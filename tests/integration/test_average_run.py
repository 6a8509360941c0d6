"""Means of checkpoints, against numpy."""

import json
import shutil

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.average.averaging import average
from paddlevideo_fast.apps.average.command import as_text, build_parser
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Distribution, Evaluator
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.errors import CheckpointError, ConfigError, WeightError
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.modeling.weights import read_weights
from tests.support.json_lines import entries_of


@pytest.fixture(scope="module")
def made(motion_data, tiny_text, tmp_path_factory):
    """A folder with a run of three epochs, and a config."""
    root = tmp_path_factory.mktemp("average")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "out"))
    assert main(["train", "-c", str(root / "tiny.yaml"), "-o", "epochs=3"]) == 0
    return root


def checkpoints(root, *epochs):
    return [root / "out" / f"tiny_epoch_{epoch:05d}.pdparams" for epoch in epochs]


def config_of(root, *overrides):
    return load_config(str(root / "tiny.yaml"), list(overrides))


def plain_mean(files):
    """By numpy, in float64."""
    every = [read_weights(path) for path in files]
    return {
        name: np.mean([each[name].astype(np.float64) for each in every], axis=0).astype(value.dtype)
        for name, value in every[0].items()
    }


def save(weights, path):
    paddle.save({name: paddle.to_tensor(value) for name, value in weights.items()}, str(path))


def is_statistic(name):
    return name.endswith(("._mean", "._variance"))


def test_the_mean_of_the_last_checkpoints_is_numpys(made, capfd):
    assert main(["average", "-c", str(made / "tiny.yaml"), "--last", "2", "--json"]) == 0
    (printed,) = entries_of(capfd.readouterr().out)
    assert "tiny_average_last2.pdparams: the mean of 2 checkpoints; " in as_text(printed)
    found = read_weights(made / "out/tiny_average_last2.pdparams")
    expected = plain_mean(checkpoints(made, 2, 3))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not is_statistic(name):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    facts = json.loads((made / "out/tiny_average_last2_report.json").read_text())
    assert facts["averaged"] == [str(path) for path in checkpoints(made, 2, 3)]
    files = {"weights": f"{made}/out/tiny_average_last2.pdparams"}
    assert printed == {**files, "report": files["weights"].replace(".pdparams", "_report.json"), **facts}
    assert [each["weights"] for each in facts["before"]] == facts["averaged"]
    assert facts["batch_norm"] == "measured"

    # statistics of the mean's own batches, and the validation of what was written
    spec = RunSpec.of(config_of(made))
    model = build_model(spec.model)
    load_weights(model, made / "out/tiny_average_last2.pdparams", strict=True)
    split = make_split(spec, "train", model.layout, Distribution())
    for name, (mean, variance) in population_statistics(
        Evaluator(split.loader, split.preprocess), model
    ).items():
        np.testing.assert_allclose(found[f"{name}._mean"], mean.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[f"{name}._variance"], variance.numpy(), rtol=1e-4, atol=1e-5)
    options = ["-o", f"output_dir={made / 'tested'}", "-o", "report=false"]
    weights = str(made / "out/tiny_average_last2.pdparams")
    assert main(["test", "-c", str(made / "tiny.yaml"), "-w", weights, *options]) == 0
    tested = json.loads((made / "tested/test/metrics.json").read_text())
    assert {name: tested[name] for name in facts["after"]} == facts["after"]


def test_batch_norms_that_are_equal_in_all_files_stay_as_they_are(made, tmp_path):
    weights = {name: np.array(value) for name, value in read_weights(checkpoints(made, 3)[0]).items()}
    weights["head.fc.weight"] *= 3
    weights["head.fc.bias"] += np.float32(0.1)
    save(weights, tmp_path / "b.pdparams")
    files = [*checkpoints(made, 3), tmp_path / "b.pdparams"]
    done = average(config_of(made), 2, files, tmp_path / "mean.pdparams")
    assert done.facts["batch_norm"] == "equal in all"
    assert (tmp_path / "class_names.txt").read_text() == (made / "out/class_names.txt").read_text()
    found = read_weights(done.path)
    for name, value in plain_mean(files).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_mean_of_one_network_and_another_is_refused(made, tmp_path):
    weights = {name: np.array(value) for name, value in read_weights(checkpoints(made, 3)[0]).items()}
    weights["head.fc.bias"] = np.zeros(7, np.float32)
    save(weights, tmp_path / "b.pdparams")
    with pytest.raises(
        WeightError, match=r"b.pdparams: is of another network .* head.fc.bias is \[7\] here and \[4\]"
    ):
        average(config_of(made), 2, [*checkpoints(made, 3), tmp_path / "b.pdparams"], tmp_path / "c")
    assert not list(tmp_path.glob("c*"))


@pytest.mark.parametrize(
    ("overrides", "last", "error", "problem"),
    [
        ([], 4, CheckpointError, "has 3 checkpoints of epochs, and 4 are wanted: keep more with"),
        (["output_dir=nowhere"], 2, CheckpointError, "'nowhere' has 0 checkpoints of epochs, and 2 are"),
        (["DATASET.valid="], 2, ConfigError, "DATASET.valid: average needs this section"),
        (["SELECTION={metric: mAP}"], 2, ConfigError, "SELECTION.metric=mAP: validation gives no such value"),
    ],
)
def test_what_cannot_be_averaged(made, tmp_path, overrides, last, error, problem):
    with pytest.raises(error) as caught:
        average(config_of(made, *overrides), last, output=tmp_path / "mean.pdparams")
    assert problem in str(caught.value)


def test_the_checkpoints_of_a_run_in_a_store_are_averaged(made, tmp_path, s3_store, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = s3_store.publish(made / "out")
    done = average(config_of(made, f"output_dir={url}"), 2, output=tmp_path / "mean.pdparams")
    assert [name.rpartition("/")[2] for name in done.facts["averaged"]] == [
        path.name for path in checkpoints(made, 2, 3)
    ]


def test_a_run_that_was_moved_is_averaged_where_it_is(made, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(made / "out", moved)
    before = sorted((made / "out").iterdir())
    done = average(load_config(str(moved)), 2)
    assert done.path == moved / "tiny_average_last2.pdparams"
    assert {str(moved)} == {name.rpartition("/")[0] for name in done.facts["averaged"]}
    assert sorted((made / "out").iterdir()) == before
    chosen = average(
        load_config(str(moved), [f"output_dir={made / 'out'}"]), 2, output=tmp_path / "x.pdparams"
    )
    assert {str(made / "out")} == {name.rpartition("/")[0] for name in chosen.facts["averaged"]}


def test_weights_may_be_named_in_several_places():
    args = build_parser().parse_args(["-c", "x", "--last", "2", "-w", "a", "-w", "b", "c"])
    assert [str(path) for path in args.weights] == ["a", "b", "c"]
