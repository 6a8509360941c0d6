"""Early stopping of a real run, on two processes."""

import json
import re

import pytest

from paddlevideo_fast.engine import load_checkpoint
from tests.support.launching import MAIN, overriding


@pytest.mark.slow
def test_two_processes_stop_after_the_same_epoch(tiny_config, tmp_path, job):
    options = overriding("SELECTION={patience: 2, min_delta: 1, mean_of: 1}", "epochs=9", "report=true")
    logs = job("job", [MAIN, "-c", tiny_config, *options]).succeed(240)
    told = r"training stops after epoch 3 of 9: no .* improved by more than 1 since epoch 1 \(top1 .*, 2 in a"
    assert re.search(told, logs[0])
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "valid" for record in records) == 3
    assert load_checkpoint(str(tmp_path / "out/tiny_epoch_00003")).state["run"]["world_size"] == 2
    assert "best: epoch" in (tmp_path / "out/report.html").read_text()  # fit_end has run
