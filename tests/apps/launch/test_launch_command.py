"""`paddlevideo-fast launch`: what it starts again and what it does not."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddlevideo_fast.apps.launch import command as launch
from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["launch"].start
SCRIPT = str(Path(launch.__file__).with_name("process.py"))

START = """
import sys
from paddlevideo_fast.apps.launch.command import start
sys.exit(start(["sh", "-c", sys.argv[1]], 2))
"""


@pytest.fixture
def starts(environment, tmp_path):
    """`starts(script)`: the exit code of a shell script under `start`, how often it ran, and stderr."""

    def run(script):
        done = subprocess.run(
            [sys.executable, "-c", START, f"echo >> runs; {script}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, len((tmp_path / "runs").read_text().splitlines()), done.stderr

    return run


@pytest.mark.parametrize(
    ("script", "code", "runs"),
    [
        ("exit 0", 0, 1),
        ("exit 1", 1, 3),
        ("exit 2", 2, 1),  # the user's to put right
        ("exit 143", 143, 1),  # a rank got a signal, here or on another machine, and all have saved
        ("exit 247", 1, 3),  # Paddle's launcher, when a process got SIGKILL
        ("test $(wc -l < runs) = 2", 0, 2),
        ("kill -9 $$", 137, 1),  # what it has started may still run
    ],
)
def test_a_failure_starts_again_and_wrong_input_does_not(starts, script, code, runs):
    found_code, found_runs, stderr = starts(script)
    assert (found_code, found_runs) == (code, runs)
    assert stderr.count("restart") == (1 if code == 137 else runs - 1)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--gpus", "0,1", "train", "-c", "x"], ["--gpus", "0,1", SCRIPT, "train", "-c", "x"]),
        (["--log_dir=x", "test", "-c", "x"], ["--log_dir=x", SCRIPT, "test", "-c", "x"]),
        (["--log_dir", "train", "train", "-c", "x"], ["--log_dir", "train", SCRIPT, "train", "-c", "x"]),
        ([__file__, "-c", "x", "train"], [__file__, "-c", "x", "train"]),
    ],
)
def test_the_launcher_gets_a_script_for_a_command(monkeypatch, words, given):
    started = []
    monkeypatch.setattr(launch, "start", lambda command, restarts: started.append(command[4:]) or 0)
    assert main(words) == 0
    assert started == [given]


@pytest.mark.parametrize(
    ("words", "visible", "message"),
    [
        (["--gpus", "0,0"], None, "--gpus 0,0: each process needs a GPU of its own; name each GPU once"),
        (["--devices=1,2"], None, "--devices 1,2: the GPUs here are 0, 1"),
        (["--gpus", "0"], "2,3", "--gpus 0: the GPUs here are 2, 3"),
        (["--nproc_per_node", "3"], "2,3", "--nproc_per_node 3: each process needs a GPU of its own, and"),
        (["--gpus", "1", "--nproc_per_node=2"], None, "and there are 1: 1"),
        (["--gpus", "0,1"], None, None),
        (["--gpus", "3,2"], "2,3", None),
        (["--nproc_per_node", "2"], "2,3", None),
        (["--nproc_per_node", "3"], None, None),  # this is a CPU build
    ],
)
def test_each_process_has_a_gpu_that_is_there(monkeypatch, capsys, words, visible, message):
    monkeypatch.setattr(launch, "installed_gpus", lambda: ["a GPU", "a GPU"])
    monkeypatch.setattr(launch, "start", lambda command, restarts: 0)
    monkeypatch.setattr(launch.importlib.metadata, "distributions", lambda name: [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main([*words, "train", "-c", "x"]) == (2 if message else 0)
    assert (message or "") in capsys.readouterr().err


def test_a_gpu_build_has_no_more_processes_than_gpus(monkeypatch, capsys):
    monkeypatch.setattr(launch, "installed_gpus", lambda: ["a GPU", "a GPU"])
    monkeypatch.setattr(launch.importlib.metadata, "distributions", lambda name: [name])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert main(["--nproc_per_node", "3", "train", "-c", "x"]) == 2
    assert "and there are 2: 0, 1" in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_prints_results_on_the_stdout_of_launch(environment, tmp_path, rank):
    files = [tmp_path / "stdout of launch", tmp_path / "log of the rank"]
    with files[0].open("w") as out, files[1].open("w") as log:
        own = {**environment, "PADDLE_TRAINER_ID": str(rank)}
        subprocess.run([sys.executable, SCRIPT, "--version"], env=own, stdin=out, stdout=log, check=True)
    assert files[rank].read_text().startswith("paddlevideo-fast ")
    assert files[1 - rank].read_text() == ""


@pytest.mark.parametrize(("words", "out", "err"), [([SCRIPT], "result\n", "log\n"), (["my.py"], "log\n", "")])
def test_the_log_of_a_command_comes_on_stderr(environment, words, out, err):
    """A shell in place of the launcher."""
    start = "import sys; from paddlevideo_fast.apps.launch.command import start; start(sys.argv[1:], 0)"
    command = [sys.executable, "-c", start, "sh", "-c", "echo log; echo result >&0", *words]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


RANKS = """
for rank in 0 1; do
    setsid sh -c 'trap "{trap}" TERM; echo started; while :; do sleep 0.05; done' &
done
wait
"""


@pytest.mark.parametrize(
    ("trap", "numbers", "printed"),
    [
        ("sleep 0.3; echo saved; exit 143", [signal.SIGTERM], "saved\nsaved\n"),
        ("sleep 0.3; echo saved; exit 143", [signal.SIGINT], "saved\nsaved\n"),
        ("sleep 0.3; echo saved; exit 143", [signal.SIGTERM, signal.SIGTERM], "saved\nsaved\n"),
        ("echo stays", [signal.SIGINT, signal.SIGINT], "stays\nstays\n"),
    ],
)
def test_a_signal_comes_once_to_all_processes_and_ends_the_restarts(environment, trap, numbers, printed):
    """Processes of a shell in place of the launcher; Ctrl-C once more kills those that stay."""
    command = [sys.executable, "-c", START, RANKS.format(trap=trap)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.2)
        assert process.communicate(timeout=60)[0] == printed
    assert process.returncode == 128 + numbers[-1]


def test_a_signal_ends_a_launcher_that_has_started_nothing(environment):
    command = [sys.executable, "-c", START, "trap '' INT TERM; echo started; while :; do :; done"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130


@pytest.mark.parametrize(
    ("printed", "last_words"),
    [("epoch: 3\ninterrupted; to go on:  new\n", "interrupted; to go on:  new\n"), ("\n", "interrupted\n")],
)
def test_the_command_to_go_on_is_of_this_run(monkeypatch, capsys, tmp_path, printed, last_words):
    log = tmp_path / "workerlog.0"
    log.write_text("interrupted; to go on:  old\n")  # Paddle's launcher appends to it
    monkeypatch.setattr(
        launch, "start", lambda command, restarts: log.write_text(log.read_text() + printed) and 130
    )
    assert main(["--log_dir", str(tmp_path), "train", "-c", "x"]) == 130
    assert capsys.readouterr().err == last_words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to start"),
        (["--nproc_per_node", "2"], "nothing to start"),
        (["--gpus=0,1", "trian", "-c", "x"], "there is no command or script 'trian'; did you mean 'train'?"),
        (["--max_restart", "1", "tools/main.py", "-c", "x.yaml"], "--max_restart needs train ... --resume"),
        (["--max_restart", "-1", "tools/main.py"], "no whole number from 0 on"),
    ],
)
def test_wrong_arguments_are_refused(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err
