"""`tools/benchmark.py threads`: processes of their own, in turn."""

from __future__ import annotations

import json
import os

import pytest

from paddlevideo_fast.bench import threads
from paddlevideo_fast.machine import num_cores


def test_a_config_on_one_thread_and_on_all(config, command, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of this process alone
    arguments = ["threads", "-c", str(config()), "--steps", "1", "--rounds", "1", "--json"]
    assert command("benchmark").main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["cores"], result["default_threads"]) == (num_cores(), num_cores())
    assert result["speedup"] == pytest.approx(result["one_sec"] / result["default_sec"])


def test_sides_take_turns_and_medians_count(monkeypatch):
    seconds = {"1": iter([4.0, 9.0, 6.0]), None: iter([2.0, 3.0, 4.0])}
    asked = []

    def measured(how, variables):
        asked.append(variables.get("OMP_NUM_THREADS"))
        found = {"step_sec": next(seconds[asked[-1]]), "threads": 2, "cores": 2}
        return {**found, "device": "cpu", "paddle": "3"}

    monkeypatch.setattr(threads, "_in_new_process", measured)
    result = threads.run(rounds=3)
    assert asked == [None, "1", "1", None, None, "1"]
    assert (result["one_sec"], result["default_sec"], result["speedup"]) == (6.0, 3.0, 2.0)
    assert "2 threads (default)    3.000 s, 2.00x as fast; 2 cores" in threads.table(result)


def test_what_a_process_says_is_told_when_it_fails(monkeypatch):
    monkeypatch.setattr(threads, "_CHILD", "raise SystemExit('no room')")
    with pytest.raises(RuntimeError, match="code 1:\nno room"):
        threads.run(rounds=1)


def test_a_step_of_tsm_is_timed(monkeypatch):
    backbone = {**threads.TSM_R50["backbone"], "depth": 18, "width": 2, "stage_blocks": [1, 1, 1, 1]}
    head = {**threads.TSM_R50["head"], "in_channels": 16}
    monkeypatch.setattr(threads, "TSM_R50", {**threads.TSM_R50, "backbone": backbone, "head": head})
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    result = threads.measure(None, [], steps=1)
    assert result["step_sec"] > 0
    assert result["threads"] == 1
