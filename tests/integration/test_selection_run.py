"""Early stopping of a real run, on two processes."""

import json

import pytest

from paddlevideo_fast.engine import load_checkpoint
from tests.support.launching import MAIN, overriding


@pytest.mark.slow
def test_two_processes_stop_after_the_same_epoch(tiny_config, tmp_path, job):
    # with four classes every video is among the top 5 from the first epoch on
    options = overriding("SELECTION={metric: top5, patience: 2}", "epochs=9", "report=true")
    logs = job("job", [MAIN, "-c", tiny_config, *options]).succeed(240)
    told = (
        "training stops after epoch 3 of 9: no validation has improved since epoch 1 (top5 1.00000), 2 in a"
    )
    assert told in logs[0]
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [record["best_epoch"] for record in records if record["kind"] == "valid"] == [1, 1, 1]
    assert load_checkpoint(str(tmp_path / "out/tiny_epoch_00003")).state["run"]["world_size"] == 2
    assert "best: epoch 1" in (tmp_path / "out/report.html").read_text()  # fit_end has run
