"""The benchmark of scaling trains in two processes and its numbers belong together."""

from __future__ import annotations

import json
import sys

import pytest

from paddlevideo_fast.bench import scale
from paddlevideo_fast.errors import DistributionError


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


def test_processes_that_fail_are_one_error_with_their_output(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DistributionError, match="ended with code 3:\nno room"):
        scale.run(processes=2, batch_size=1, width=4, steps=1, rounds=1)
