"""`tools/benchmark.py imbalance`: real runs of two rows, kept, and told by the number of clips."""

from __future__ import annotations

import json

import numpy as np

from benchmarks import imbalance
from benchmarks.tables import imbalance_rows


def test_the_runs_and_their_table(command, tmp_path, capsys, monkeypatch):
    rows = {name: imbalance.ROWS[name] for name in (imbalance.PLAIN, imbalance.LATE)}
    monkeypatch.setattr(imbalance, "ROWS", rows)
    saved = tmp_path / "saved.json"
    arguments = ["imbalance", "--seeds", "2", "--classes", "left,right,up", "--most", "9", "--fewest", "1"]
    arguments += ["--valid", "2", "--epochs", "4", "--output", str(tmp_path / "out"), "--save", str(saved)]
    assert command("benchmark").main(arguments) == 0
    printed = capsys.readouterr().out
    result = json.loads(saved.read_text())["result"]
    assert result["counts"] == [9, 3, 1]
    assert "Training clips a class: 9, 3, 1. 2 seeds, 4 epochs." in printed
    for seed in range(2):
        labels = [
            int(line.split()[1])
            for line in (tmp_path / "out" / f"train_{seed}.list").read_text().splitlines()
        ]
        # class c has counts[(c + seed) % 3]
        assert np.bincount(labels).tolist() == [[9, 3, 1], [3, 1, 9]][seed]
        for name, folder in ((imbalance.PLAIN, "plain"), (imbalance.LATE, "plain_then_sampler_balanced")):
            config = json.loads((tmp_path / "out" / f"{folder}_{seed}" / "result.json").read_text())
            assert np.roll(config["accuracies"], seed).tolist() == result["rows"][name][seed]
    # what is complete stays, and a run of another config is not taken
    assert command("benchmark").main(arguments) == 0
    assert json.loads(saved.read_text())["result"] == result
    capsys.readouterr()
    arguments[arguments.index("4")] = "5"
    assert command("benchmark").main(arguments) == 2
    assert "result.json: is of another config; remove it or" in capsys.readouterr().err


def test_the_table_has_means_over_halves_and_seeds():
    result = {"rows": {"FocalLoss": [[1.0, 0.8, 0.4, 0.2], [1.0, 1.0, 0.6, 0.0]]}}
    assert imbalance_rows(result, str) == [
        ["training", "all classes", "frequent half", "rare half", "rarest class"],
        ["`FocalLoss`", "62 % (60–65)", "95 % (90–100)", "30 % (30–30)", "10 % (0–20)"],
    ]
