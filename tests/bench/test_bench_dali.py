"""The comparison with DALI runs, on what the installed version decodes, and says what it did not measure."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("nvidia.dali", reason="DALI is not installed: pip install -e '.[dali120]'")


def test_dali_benchmark(make_clip, run_script, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 20, size=(340, 256), codec="mpeg4")  # no DALI decodes it on a CPU
    options = ("--recipe", "tsm", "--rounds", "2", "--batch-size", "2")
    result = json.loads(run_script("tools/benchmark.py", "dali", clip, *options, "--json").stdout)
    ours, cpu, gpu = result["rows"]
    assert [row["side"] for row in result["rows"]] == ["ours", "DALI on CPU", "DALI on GPU"]
    assert min(ours["ms"], cpu["ms"]) > 0
    assert cpu["ratio"] == pytest.approx(ours["ms"] / cpu["ms"])
    assert 0 < cpu["difference"] < 4
    assert gpu["ms"] is None
    assert cpu["codec"] in ("h264", "vp9")
    shown = run_script("tools/benchmark.py", "dali", clip, *options).stdout
    assert "DALI on GPU  not measured" in shown
