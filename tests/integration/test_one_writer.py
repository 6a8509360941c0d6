"""Two runs into one output: the second names the first, ends with exit code 2 and spoils nothing."""

import contextlib
import os
import signal

import pytest

from paddlevideo_fast.io.locks import LOCK, only_writer
from tests.support.launching import ROOT

TOOLS = {
    "train": ("tools/main.py -c {config}", ("out",)),
    "test": ("tools/main.py -c {config} --test -w x.pdparams", ("out", "test")),
    "export": ("tools/export_model.py -c {config} -p x.pdparams -o {tmp}/out", ("out", "tiny")),
    "annotated": ("tools/predict.py -i {config} --model_file x --annotated {tmp}/out", ("out",)),
    "timelines": (
        "tools/predict.py -i {config} --model_file x --window_sec 1 --timeline {tmp}/out",
        ("out",),
    ),
    "timeline": (
        "tools/predict.py -i {config} --model_file x --window_sec 1 --timeline {tmp}/out/x.png",
        ("out", "x.png"),
    ),
    "convert": (
        "tools/convert_weights.py --from mit-tsm --src x.pth -c {config} --output_file {tmp}/out/x.pdparams",
        ("out", "x.pdparams"),
    ),
    "check": ("data/check_videos.py {data} --output_file {tmp}/out/x.list", ("out", "x.list")),
}


@pytest.mark.slow
def test_each_tool_names_the_process_that_writes(tiny_config, motion_data, template, tmp_path):
    values = {"config": tiny_config, "data": motion_data, "tmp": tmp_path}
    with contextlib.ExitStack() as stack:
        for folder, *file in {place for _, place in TOOLS.values()}:
            stack.enter_context(only_writer(tmp_path / folder, *file))
        locks = set(os.listdir(tmp_path / "out"))
        runs = {}
        for name, (words, _) in TOOLS.items():
            script, *options = words.format(**values).split()
            runs[name] = template.start([ROOT / script, *options], ROOT)
        for name, run in runs.items():
            stdout, stderr = run.communicate(timeout=60)
            assert run.returncode == 2, (name, stdout, stderr)
            assert f"process {os.getpid()} on" in stdout + stderr, name
            assert "wait for its end, or choose another" in stdout + stderr, name
            assert "Traceback" not in stdout + stderr, name
        assert set(os.listdir(tmp_path / "out")) == locks


@pytest.mark.slow
def test_two_trainings_into_one_folder(tiny_config, tmp_path, start, wait_for_step, run_main, records):
    first = start(tiny_config, "-o", "DATASET.num_workers=1")
    wait_for_step(tmp_path / "out", 1, first)
    os.killpg(first.pid, signal.SIGSTOP)  # it must not come to its end before the second one tries
    second = run_main(tiny_config, "-o", "resume=auto", code=2)
    os.killpg(first.pid, signal.SIGCONT)
    assert f"process {first.pid} on" in second.stderr
    assert "and is stopped; wait for its end, or choose another output_dir" in second.stderr
    stdout, stderr = first.communicate(timeout=60)
    assert first.returncode == 0, stdout + stderr
    steps = [record["step"] for record in records(tmp_path / "out") if record["kind"] == "train"]
    assert steps == list(range(1, 13))
    assert not (tmp_path / "out" / LOCK).exists()
