"""The scripts as a user starts them: networks are trained, evaluated, exported, and predict real videos."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import paddle
import pytest

from test_tipc.compare_results import main as compare

SCRIPTS = Path(__file__).resolve().parents[2] / "test_tipc"
LITE = "lite_train_lite_infer"
# The oldest Paddle has one of them: what differs between the networks does not depend on its version.
MODELS = ["TSM"] if paddle.__version__.startswith("2.") else ["TSN", "TSM", "SlowFast"]

# Ends only when it is killed.
STUBBORN_TOOL = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: Path("told").touch())
Path("new_pid").write_text(str(os.getpid()))
Path("new_pid").rename("pid")
while True:
    time.sleep(0.1)
"""


def shown(done):
    return f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def text_of(repository, model):
    """A copy of the text that predicts in a few of its ways, and how many those are: each is a process."""
    lines = (repository / f"test_tipc/configs/{model}/train_infer_python.txt").read_text()
    fewer = {"--cpu_threads:1|2": "--cpu_threads:2", "--batch_size:1|4": "--batch_size:4"}
    if model != "TSM":  # oneDNN or not, and batches of one or of four, are tried on one network
        fewer["--enable_mkldnn:False|True"] = "--enable_mkldnn:True"
    else:
        del fewer["--batch_size:1|4"]
    for every, some in fewer.items():
        assert every in lines
        lines = lines.replace(every, some)
    (repository / f"{model}.txt").write_text(lines)
    return f"{model}.txt", 4 if model == "TSM" else 1


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_network_goes_from_training_to_prediction(bash, repository, model, monkeypatch):
    text, num_predictions = text_of(repository, model)
    prepared = bash("prepare.sh", text, LITE)
    assert prepared.returncode == 0, shown(prepared)
    done = bash("test_train_inference_python.sh", text, LITE)
    assert done.returncode == 0, shown(done)
    folder = repository / f"test_tipc/output/{model}/{LITE}"
    lines = (folder / "results_python.log").read_text().splitlines()
    commands = [line for line in lines if line.startswith("Run ")]
    assert len(commands) == 3 + num_predictions
    assert all(line.startswith(f"Run successfully with command - {model} - ") for line in commands)
    assert "top1_avg" in (folder / "norm_train_gpus_-1_autocast_null_nodes_1.log").read_text()
    logs = sorted(folder.glob("python_infer_norm_train_*.log"))
    assert len(logs) == num_predictions
    assert all(re.search(r"inference_time\(ms\): [\d.]+", log.read_text()) for log in logs)
    monkeypatch.chdir(repository)
    stored = f"test_tipc/results/{model}/*.txt"
    found = f"test_tipc/output/{model}/{LITE}/python_infer_norm_train_*.log"
    # what training leaves to rounding on another processor; a wrong frame or colour changes more
    assert compare([f"--gt_file={stored}", f"--log_file={found}", "--atol=0.05"]) == 0
    first = f"{logs[0].relative_to(repository)}"
    made = f"{model}_fp32.txt"
    assert compare([f"--gt_file={made}", f"--log_file={first}", "--write"]) == 0
    assert compare([f"--gt_file={made}", f"--log_file={found}", "--atol=1e-5"]) == 0


@pytest.mark.slow
def test_a_training_of_two_processes(bash, repository):
    text = repository / "fleet.txt"
    kind = "train_linux_gpu_fleet_normal_infer_python_linux_gpu_cpu"
    shutil.copy(repository / f"test_tipc/configs/TSM/{kind}.txt", text)
    lines = [re.sub("^(eval|norm_export):.*", r"\1:null", line) for line in text.read_text().splitlines()]
    text.write_text("\n".join(lines).replace("model_name:TSM", "model_name:fleet"))
    if not (repository / "test_tipc/data/motion").exists():  # another test may have made it
        assert bash("prepare.sh", "fleet.txt", LITE).returncode == 0
    done = bash("test_train_inference_python.sh", "fleet.txt", LITE)
    assert done.returncode == 0, shown(done)
    folder = repository / f"test_tipc/output/fleet/{LITE}"
    name = "norm_train_gpus_-1,-1_autocast_null_nodes_1"
    assert len(list((folder / f"{name}_workers").glob("workerlog.*"))) == 2
    assert (folder / name / "TSM_motion_epoch_00002.pdparams").is_file()


@pytest.mark.slow
def test_a_training_that_fails_ends_with_1(bash, repository):
    text = (repository / "test_tipc/configs/TSM/train_infer_python.txt").read_text()
    text = text.replace("model_name:TSM", "model_name:broken").replace("gpu_list:-1|0", "gpu_list:-1")
    (repository / "broken.txt").write_text(text.replace("-o epochs:2", "-o epoch:2"))
    done = bash("test_train_inference_python.sh", "broken.txt", LITE)
    assert done.returncode == 1, shown(done)
    assert "did you mean" in done.stdout
    lines = (repository / f"test_tipc/output/broken/{LITE}/results_python.log").read_text().splitlines()
    assert [line[:8] for line in lines] == ["Run fail", "Not run "]


def test_wrong_words_end_with_2(bash):
    text = "test_tipc/configs/TSM/train_infer_python.txt"
    for script, words in (
        ("prepare.sh", [text, "lite"]),
        ("test_train_inference_python.sh", [text, "lite"]),
        ("benchmark_train.sh", [text, LITE]),
    ):
        done = bash(script, *words)
        assert done.returncode == 2, shown(done)
        assert f"usage: bash test_tipc/{script}" in done.stderr
        assert "invalid choice" in done.stderr


def test_a_signal_to_a_script_ends_its_commands(workplace):
    (workplace.root / "tools/main.py").write_text(STUBBORN_TOOL)
    words = ["bash", SCRIPTS / "test_train_inference_python.sh", workplace.text, LITE]
    script = subprocess.Popen(words, start_new_session=True)
    try:
        wait_for(script, workplace.root / "pid")
        script.terminate()
        wait_for(script, workplace.root / "told")
        script.terminate()  # once more, while the command has time to end
        assert script.wait(timeout=50) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(int((workplace.root / "pid").read_text()), 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()


def wait_for(script, path):
    """Until the file is there; the script runs all the while."""
    end_sec = time.monotonic() + 100
    while not path.exists():
        assert script.poll() is None
        assert time.monotonic() < end_sec
        time.sleep(0.05)
