"""The benchmark of the shift runs and reports what it measured."""

from __future__ import annotations

import argparse
import json

import pytest

from paddlevideo_fast.bench import shift


@pytest.mark.smoke
def test_it_measures_both_sides(capsys):
    parser = argparse.ArgumentParser()
    shift.add_arguments(parser)
    arguments = ["--shape", "8", "8", "4", "4", "--shape", "16", "8", "2", "2", "--repeats", "2"]
    assert shift.main(parser.parse_args([*arguments, "--json"])) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["shape"], row["pass"]) for row in rows] == [
        ([8, 8, 4, 4], "forward"), ([8, 8, 4, 4], "forward+backward"),
        ([16, 8, 2, 2], "forward"), ([16, 8, 2, 2], "forward+backward"),
    ]  # fmt: skip
    for row in rows:
        assert row["speedup"] == pytest.approx(row["composed_ms"] / row["fused_ms"])
        assert row["fused_mib"] is None or row["fused_mib"] <= row["composed_mib"]
    assert shift.main(parser.parse_args(arguments)) == 0
    assert "16x8x2x2" in capsys.readouterr().out
