"""The benchmark of the shift runs and reports what it measured."""

from __future__ import annotations

import argparse
import json

import pytest

from paddlevideo_fast.bench import shift


@pytest.mark.smoke
def test_it_measures_all_sides(capsys):
    parser = argparse.ArgumentParser()
    shift.add_arguments(parser)
    arguments = ["--shape", "8", "8", "4", "4", "--shape", "16", "8", "2", "2", "--repeats", "2"]
    assert shift.main(parser.parse_args([*arguments, "--json"])) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["shape"], row["pass"], row["side"]) for row in rows] == [
        (shape, passes, side)
        for shape in ([8, 8, 4, 4], [16, 8, 2, 2])
        for passes in ("forward", "forward+backward")
        for side in ("ours", "paddle", "composed")
    ]
    for first in range(0, len(rows), 3):
        composed = rows[first + 2]
        assert composed["speedup"] == 1.0
        for row in rows[first : first + 3]:
            assert row["speedup"] == pytest.approx(composed["ms"] / row["ms"])
            assert row["mib"] is None or row["mib"] > 0
    assert shift.main(parser.parse_args(arguments)) == 0
    assert "16x8x2x2" in capsys.readouterr().out
