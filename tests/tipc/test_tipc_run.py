"""The scripts as a user starts them: networks are trained, evaluated, exported, and predict real videos."""

from __future__ import annotations

import re
import shutil
from importlib import metadata

import pytest

from test_tipc.compare_results import main as compare

LITE = "lite_train_lite_infer"
# The oldest Paddle has one of them: what differs between the networks does not depend on its version.
MODELS = ["TSM"] if metadata.version("paddlepaddle").startswith("2.") else ["TSN", "TSM", "SlowFast"]


def shown(done):
    return f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("model", MODELS)
def test_a_network_goes_from_training_to_prediction(bash, repository, model, monkeypatch):
    text = f"test_tipc/configs/{model}/train_infer_python.txt"
    prepared = bash("prepare.sh", text, LITE)
    assert prepared.returncode == 0, shown(prepared)
    done = bash("test_train_inference_python.sh", text, LITE)
    assert done.returncode == 0, shown(done)
    folder = repository / f"test_tipc/output/{model}/{LITE}"
    lines = (folder / "results_python.log").read_text().splitlines()
    commands = [line for line in lines if line.startswith("Run ")]
    assert (
        len(commands) == 11
    )  # three, and predictions with and without oneDNN, 1 and 2 threads, 1 and 4 videos
    assert all(line.startswith(f"Run successfully with command - {model} - ") for line in commands)
    assert "top1_avg" in (folder / "norm_train_gpus_-1_autocast_null_nodes_1.log").read_text()
    logs = sorted(folder.glob("python_infer_norm_train_*.log"))
    assert len(logs) == 8
    assert all(re.search(r"inference_time\(ms\): [\d.]+", log.read_text()) for log in logs)
    monkeypatch.chdir(repository)
    stored = f"test_tipc/results/{model}/*.txt"
    found = f"test_tipc/output/{model}/{LITE}/python_infer_norm_train_*.log"
    # what training leaves to rounding on another processor; a wrong frame or colour changes more
    assert compare([f"--gt_file={stored}", f"--log_file={found}", "--atol=0.02"]) == 0
    first = f"{logs[0].relative_to(repository)}"
    made = f"{model}_fp32.txt"
    assert compare([f"--gt_file={made}", f"--log_file={first}", "--write"]) == 0
    assert compare([f"--gt_file={made}", f"--log_file={found}", "--atol=1e-5"]) == 0


def test_a_training_of_two_processes(bash, repository):
    """Needs the data of the test above, or makes it."""
    text = repository / "fleet.txt"
    kind = "train_linux_gpu_fleet_normal_infer_python_linux_gpu_cpu"
    shutil.copy(repository / f"test_tipc/configs/TSM/{kind}.txt", text)
    lines = [re.sub("^(eval|norm_export):.*", r"\1:null", line) for line in text.read_text().splitlines()]
    text.write_text("\n".join(lines).replace("model_name:TSM", "model_name:fleet"))
    assert bash("prepare.sh", "fleet.txt", LITE).returncode == 0
    done = bash("test_train_inference_python.sh", "fleet.txt", LITE)
    assert done.returncode == 0, shown(done)
    folder = repository / f"test_tipc/output/fleet/{LITE}"
    name = "norm_train_gpus_-1,-1_autocast_null_nodes_1"
    assert len(list((folder / f"{name}_workers").glob("workerlog.*"))) == 2
    assert (folder / name / "TSM_motion_epoch_00002.pdparams").is_file()


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
        ("prepare.sh", ["missing.txt", LITE]),
        ("prepare.sh", []),
    ):
        done = bash(script, *words)
        assert done.returncode == 2, shown(done)
        assert re.search("invalid choice|missing.txt: cannot be read|are required", done.stderr)
