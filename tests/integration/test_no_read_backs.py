"""Between two log lines the host reads nothing back, so that on a GPU it need not wait for a step."""

import json

import pytest

from tests.support.launching import overriding

SCRIPT = """
import json
import os
import sys
from paddlevideo_fast import cli
from tests.support.read_backs import read_backs

report = sys.argv.pop()
with read_backs() as found:
    code = cli.main(sys.argv[1:])
with open(f"{report}.{os.environ.get('PADDLE_TRAINER_ID', '0')}", "w") as file:
    json.dump({"steps": found.steps, "num_late": found.num_late}, file)
sys.exit(code)
"""
OPTIONS = [
    *("log_interval=4", "accumulate_steps=2", "DATASET.batch_size=2", "save_interval=2", "val_interval=2"),
    *("EMA={decay: 0.9}", "MIX={name: VideoMix, prob: 0.8}"),
    "OPTIMIZER.grad_clip={name: ClipGradByGlobalNorm, value: 20.0}",
]


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "amp"), [(1, "false"), (2, "false"), (2, "true")])
def test_a_step_between_log_lines_reads_nothing(tiny_config, tmp_path, job, num_processes, amp):
    script, report = tmp_path / "run.py", tmp_path / "report"
    script.write_text(SCRIPT)
    job(
        "job", [script, "-c", tiny_config, *overriding(*OPTIONS, f"amp={amp}"), report], num_processes
    ).succeed()
    for rank in range(num_processes):
        found = json.loads((tmp_path / f"report.{rank}").read_text())
        num_steps = 2 * (24 // (4 * num_processes))
        assert len(found["steps"]) == num_steps + 2
        assert found["steps"] == [[]] * len(found["steps"])
        assert (found["num_late"] > 0) == (num_processes > 1)
