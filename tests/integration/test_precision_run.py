"""Mixed precision through the command line; between two log lines the host reads nothing back."""

import json

import numpy as np
import pytest

from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import MixedPrecision, Precision, RoundedPrecision, load_checkpoint
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import ConfigError
from tests.support.gpu_amp import gpu_amp
from tests.support.launching import overriding


def training_losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["num_skipped"] for line in lines if line["kind"] != "valid"] == [0] * 14
    return np.array([line["loss"] for line in lines if line["kind"] == "train"])


@pytest.mark.smoke
def test_bfloat16_runs_beside_float32(run, tmp_path, capfd):
    folders = {name: tmp_path / name for name in ("float32", "O1", "O2")}
    assert run("-o", f"output_dir={folders['float32']}") == 0
    for level in ("O1", "O2"):
        assert run("--amp", "--amp_level", level, "-o", f"output_dir={folders[level]}") == 0
        assert f" in bfloat16 {level} (rounded, as a CPU has no 16-bit kernels" in capfd.readouterr().err
    losses = {name: training_losses(folder) for name, folder in folders.items()}
    for level in ("O1", "O2"):
        difference = np.abs(losses[level] - losses["float32"])
        assert 1e-5 < difference[0] < 0.01
        assert difference.max() < 0.1
    assert (losses["O1"] != losses["O2"]).any()

    checkpoint = load_checkpoint(str(folders["O2"] / "tiny_epoch_00002"))
    for tensors in (checkpoint.weights, checkpoint.optimizer):
        assert {np.asarray(value).dtype for value in tensors.values()} <= {np.dtype("float32")}
    weights = str(folders["O2"] / "tiny_best.pdparams")
    shown = []
    for flags in ([], ["--amp", "--amp_level", "O2"]):
        assert run("--test", "-w", weights, *flags) == 0
        shown.append(capfd.readouterr().err.split("loss: ")[1].split()[0])
    assert shown[0] != shown[1]
    assert float(shown[0]) == pytest.approx(float(shown[1]), abs=0.02)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--amp", "--amp_level", "O3"], "UsageError: --amp_level: invalid choice: 'O3'"),
        (["--amp", "--amp_dtype", "float32"], "UsageError: --amp_dtype: invalid choice: 'float32'"),
        (["--amp", "-o", "amp_level=2"], "amp_level=2: expected"),
        (["--amp_level", "O2"], "amp_level=O2: has no effect without amp; add --amp"),
        (["-o", "amp_dtype=bfloat16"], "amp_dtype=bfloat16: has no effect without amp; add --amp"),
        (
            ["--amp", "--amp_dtype", "float16"],
            "amp_dtype=float16: this CPU cannot train in it; take --amp_dtype",
        ),
    ],
)
def test_wrong_flags_are_told_before_anything_is_written(tiny_config, assert_refused, flags, message):
    assert_refused(tiny_config, message, flags=flags)


def test_the_default_format_follows_the_device(tiny_config, monkeypatch):
    def precision(*overrides):
        return make_precision(RunSpec.of(load_config(str(tiny_config), overrides)).run)

    assert type(precision()) is Precision
    assert type(precision("amp=false", "amp_level=O2", "amp_dtype=float16")) is Precision
    assert type(precision("amp=true")) is RoundedPrecision
    assert precision("amp=true").name == "bfloat16 O1"

    capability = [90]
    monkeypatch.setattr("paddle.get_device", lambda: "gpu:0")
    monkeypatch.setattr("paddlevideo_fast.engine.precision.compute_capability", lambda: capability[0])
    for dtype in ("float16", "bfloat16"):
        with gpu_amp():
            chosen = precision("amp=true", f"amp_dtype={dtype}", "amp_level=O2")
        assert (type(chosen), chosen.name, chosen.reason) == (MixedPrecision, f"{dtype} O2", "")
    assert precision("amp=true").name == "bfloat16 O1"
    assert precision("amp=true").reason == "this GPU has bfloat16"
    capability[0] = 75
    with gpu_amp():
        assert precision("amp=true", "amp_level=O2").name == "float16 O2"
        assert precision("amp=true").reason == "this GPU lacks bfloat16"
    with pytest.raises(ConfigError, match="this GPU cannot train in it; take --amp_dtype float16, or leave"):
        precision("amp=true", "amp_dtype=bfloat16")
    capability[0] = 61
    with pytest.raises(ConfigError, match="amp_dtype=float16: this GPU cannot train in it; leave --amp out"):
        precision("amp=true")


# --- Between two log lines the host reads nothing back, so that on a GPU it need not wait for a step


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
