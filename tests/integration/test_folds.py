"""Cross-validation of a small list: `assembly.cross_validate`."""

import json
from collections import Counter

import numpy as np
import pytest

from paddlevideo_fast import assembly
from paddlevideo_fast.assembly.folds import deal, summary
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError, SettingError
from paddlevideo_fast.loader.tables import Row, list_rows
from tests.support.launching import overriding

SHORT = ["epochs=1", "use_visualdl=false"]


def rows_of(labels, groups=None):
    groups = groups or [""] * len(labels)
    return [
        Row(n + 1, f"{n}.mp4", (label,), group=group) for n, (label, group) in enumerate(zip(labels, groups))
    ]


def test_each_video_is_validated_once_and_a_stopped_fold_goes_on(
    tiny_config, tmp_path, caplog, capfd, monkeypatch
):
    caplog.set_level("INFO", "paddlevideo_fast")
    monkeypatch.chdir(tmp_path)
    tiny_config.write_text(tiny_config.read_text().replace(f"output_dir: {tmp_path / 'out'}\n", ""))
    found = assembly.cross_validate(load_config(tiny_config, SHORT), 2)
    out = tmp_path / "output" / "tiny"
    lists = [{row.path for row in list_rows(str(out / f"lists/fold_{k}_valid.jsonl"))} for k in (1, 2)]
    whole = {row.path: row for row in list_rows(load_config(tiny_config)["DATASET"]["train"]["file_path"])}
    assert not lists[0] & lists[1]
    assert lists[0] | lists[1] == set(whole)
    for k, valid in enumerate(lists, 1):
        assert Counter(whole[path].labels for path in valid) == {(label,): 3 for label in range(4)}
        trained = load_config(out / f"fold_{k}/config.yaml")
        seen = {row.path for row in list_rows(trained["DATASET"]["train"]["file_path"])}
        assert seen == set(whole) - valid
    assert json.loads((out / "folds.json").read_text()) == found
    top1 = [fold["top1"] for fold in found["folds"]]
    assert [fold["num_samples"] for fold in found["folds"]] == [12, 12]
    assert (found["mean"], found["pooled"]) == (pytest.approx(np.mean(top1)), pytest.approx(np.mean(top1)))
    assert found["standard_deviation"] == pytest.approx(np.std(top1, ddof=1))
    assert found["text"] in caplog.text

    for path in (out / "fold_2").glob("tiny_epoch_00001.*"):
        path.unlink()  # as if it had been stopped before its end
    assert main(["train", str(tiny_config), "--folds", "2", "--resume", *overriding(*SHORT)]) == 0
    assert json.loads((out / "folds.json").read_text()) == found
    assert capfd.readouterr().out.count("nothing is left to train") == 1
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["tiny"]


@pytest.mark.parametrize("num_folds", [2, 3, 5])
def test_classes_are_spread_and_groups_are_kept_together(num_folds):
    rng = np.random.default_rng(num_folds)
    labels, groups = rng.integers(0, 4, 200).tolist(), [f"g{n}" for n in rng.integers(0, 60, 200)]
    rows = rows_of(labels, groups)
    folds = deal(rows, num_folds, seed=7)
    assert deal(rows, num_folds, seed=7) == folds != deal(rows, num_folds, seed=8)
    assert all(len({fold for fold, own in zip(folds, groups) if own == name}) == 1 for name in set(groups))
    sizes = Counter(folds)
    assert max(sizes.values()) - min(sizes.values()) <= 10
    counts = Counter(zip(folds, labels))
    for label in range(4):
        of_class = [counts[fold, label] for fold in range(1, num_folds + 1)]
        assert max(of_class) - min(of_class) <= 10
    alone = Counter(zip(deal(rows_of(labels), num_folds, 7), labels))
    for label in range(4):
        of_class = [alone[fold, label] for fold in range(1, num_folds + 1)]
        assert max(of_class) - min(of_class) <= 1


def test_the_result_of_all_folds():
    found = summary(
        [{"fold": 1, "top1": 0.5, "num_samples": 20}, {"fold": 2, "top1": 0.9, "num_samples": 10}]
    )
    assert found["pooled"] == pytest.approx(19 / 30)
    assert found["interval"] == pytest.approx([0.4551, 0.7813], abs=1e-4)
    assert found["text"].startswith(
        "2 folds, last epoch of each: top1 0.70000 ± 0.28284; all 30 videos together: 0.63"
    )


@pytest.mark.parametrize(
    ("num_folds", "override", "message"),
    [
        (1, "epochs=1", "--folds: 1: cross-validation needs at least 2"),
        (30, "epochs=1", "has 24 videos or groups, too few for 30 folds"),
        (2, "features=x", "features: belong to one division of the data"),
        (2, "DATASET.train.file_path=no.list", "--folds deals a list out, and no.list is no such file"),
    ],
)
def test_what_cannot_be_dealt(tiny_config, tmp_path, num_folds, override, message):
    with pytest.raises((ConfigError, SettingError)) as caught:
        assembly.cross_validate(load_config(tiny_config, [override]), num_folds)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
