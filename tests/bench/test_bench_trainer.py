"""The benchmark of the trainer runs both loops and reports their ratio."""

from __future__ import annotations

import argparse
import json

import pytest

from paddlevideo_fast.bench import trainer


@pytest.mark.smoke
def test_it_measures_both_loops(capsys):
    parser = argparse.ArgumentParser()
    trainer.add_arguments(parser)
    arguments = ["--steps", "2", "--rounds", "3", "--batch-size", "1"]
    assert trainer.main(parser.parse_args([*arguments, "--json"])) == 0
    result = json.loads(capsys.readouterr().out)
    low, high = result["cost_spread"]
    assert low <= result["cost"] <= high
    assert result["bare_steps_per_sec"] > 0 < result["trainer_steps_per_sec"]
    assert "cost of the trainer" in trainer.table(result)
