"""The benchmark of scaling trains in two processes and its numbers belong together."""

from __future__ import annotations

import json

import pytest

from paddlevideo_fast.bench import scale


def test_it_measures_one_process_and_two(command, capfd):
    sizes = ["--batch-size", "1", "--width", "4", "--steps", "2", "--rounds", "3"]
    assert command("benchmark").main(["scale", *sizes, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    rates, (low, high) = result["clips_per_sec"], result["speedup_spread"]
    assert rates["one"] > 0 < rates["all"]
    assert low <= result["speedup"] <= high
    assert result["efficiency"] == result["speedup"] / result["processes"] == result["speedup"] / 2
    assert result["communication"] < 1
    assert "2 processes" in scale.table(result)


def test_the_ranks_output_is_in_the_message_where_they_fail(monkeypatch):
    monkeypatch.setattr(scale, "ROOT", "/nowhere")
    with pytest.raises(scale.DistributionError, match="No module named"):
        scale.run(2, 1, 4, 1, 1)
