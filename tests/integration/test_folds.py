"""Cross-validation of a small list: `cross_validate`."""

import json
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.apps.folds.folds import cross_validate, deal, summary
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError, SettingError
from paddlevideo_fast.loader.tables import Row, list_rows
from tests.support.json_lines import entries_of
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
    found = cross_validate(load_config(tiny_config, SHORT), 2)
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
    assert main(["train", str(tiny_config), "--folds", "2", "--resume", "--json", *overriding(*SHORT)]) == 0
    assert json.loads((out / "folds.json").read_text()) == found
    printed, log = capfd.readouterr()
    assert entries_of(printed) == [found]
    assert log.count("nothing is left to train") == 1
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["tiny"]


@pytest.mark.parametrize("changed", ["num_folds", "seed", "list"])
def test_folds_of_another_division_are_not_resumed_but_moved_aside(
    tiny_config, tmp_path, capfd, monkeypatch, changed
):
    trained = []

    def train(config):
        trained.append(config["output_dir"])
        (tmp_path / "out" / f"fold_{len(trained)}").mkdir()
        return Namespace(state=Namespace(last_validation={"top1": 0.5, "num_samples": 8, "epoch": 1}))

    monkeypatch.setattr("paddlevideo_fast.apps.folds.folds.train", train)
    text = tiny_config.read_text().replace("/train.list", "/own.list")
    motion = Path(load_config(tiny_config)["DATASET"]["train"]["data_prefix"])
    own = tmp_path / "own.list"
    own.write_text((motion / "train.list").read_text())
    tiny_config.write_text(text.replace(f"{motion}/own.list", str(own)))
    config = ["train", str(tiny_config), *overriding("seed=1")]
    assert main([*config, "--folds", "3"]) == 0
    lists = {path.name: path.read_bytes() for path in (tmp_path / "out" / "lists").iterdir()}
    assert main([*config, "--folds", "3", "--resume"]) == 0
    if changed == "list":
        own.write_text("".join(own.read_text().splitlines(keepends=True)[:-1]))
    num_folds = "2" if changed == "num_folds" else "3"
    other = [*config, *(overriding("seed=2") if changed == "seed" else []), "--folds", num_folds]
    capfd.readouterr()
    assert main([*other, "--resume"]) == 2
    assert "holds 3 folds by seed 1" in "".join(capfd.readouterr())
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / "lists").iterdir()} == lists
    assert len(trained) == 6

    assert main(other) == 0
    assert (tmp_path / "out" / "earlier-1" / "fold_3").is_dir()
    assert len(list((tmp_path / "out" / "lists").iterdir())) == 2 * int(num_folds)


def test_what_shares_a_file_or_a_group_is_in_one_fold():
    shared = [("a.mp4", "g"), ("b.mp4", "g"), ("./b.mp4", "h"), ("b.mp4", ""), ("c.mp4", "h"), ("a.mp4", "")]
    shared += [("d.mp4", ""), ("sub/../d.mp4", "k"), ("e.mp4", "k")]
    rows = [Row(n, path, (n % 2,), group=group) for n, (path, group) in enumerate(shared)]
    rows += rows_of([0, 1] * 10)
    for seed in range(20):
        folds = deal(rows, 2, seed)
        assert len(set(folds[:6])) == 1
        assert len(set(folds[6:9])) == 1
    assert len({(folds[0], folds[6]) for folds in (deal(rows, 2, seed) for seed in range(20))}) > 1


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
        cross_validate(load_config(tiny_config, [override]), num_folds)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_between_two_folds_prints_the_command_to_go_on(tiny_config, monkeypatch, capfd):
    def train(config):
        if config["output_dir"].endswith("fold_2"):
            raise KeyboardInterrupt
        return Namespace(state=Namespace(last_validation={"top1": 0.5, "num_samples": 8, "epoch": 1}))

    monkeypatch.setattr("paddlevideo_fast.apps.folds.folds.train", train)
    assert main(["train", str(tiny_config), "--folds", "2"]) == 130
    command = f"paddlevideo-fast train {tiny_config} --folds 2 --resume"
    assert capfd.readouterr().err.endswith(f"interrupted; to go on:  {command}\n")
