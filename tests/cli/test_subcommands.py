"""`paddlevideo-fast`: its subcommands, each of which names itself and others as its user has started it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paddlevideo_fast
from paddlevideo_fast.cli import commands
from paddlevideo_fast.cli.data import TOOLS
from paddlevideo_fast.invocation import SCRIPTS, as_started, program

ROOT = Path(__file__).resolve().parents[2]
ALL = {**commands.COMMANDS, **{f"data {name}": tool for name, tool in TOOLS.items()}}


@pytest.fixture
def started(monkeypatch):
    """Function that says how this process was started."""
    return lambda argv0: monkeypatch.setattr(sys, "argv", [str(argv0)])


@pytest.mark.parametrize("name", ALL)
def test_each_command_names_itself(name, started):
    started("/usr/bin/paddlevideo-fast")
    assert ALL[name].make_parser().prog == f"paddlevideo-fast {name}"
    started(ROOT / "paddlevideo_fast" / "__main__.py")
    assert ALL[name].make_parser().prog == f"python -m paddlevideo_fast {name}"
    if name in SCRIPTS and name != "test":
        started(ROOT / SCRIPTS[name])
        assert ALL[name].make_parser().prog == SCRIPTS[name]
        assert "paddlevideo-fast " not in ALL[name].make_parser().format_help()


def test_every_script_is_there():
    assert set(SCRIPTS) < set(ALL)
    assert [script for script in SCRIPTS.values() if not (ROOT / script.split()[0]).is_file()] == []


def test_other_commands_are_named_as_this_one_was_started(started):
    text = (
        "write it with `paddlevideo-fast export -p x`, then paddlevideo-fast zoo, paddlevideo-fast data pack"
    )
    started("/usr/bin/paddlevideo-fast")
    assert as_started(text) == text
    started("/elsewhere/tools/main.py")
    assert as_started(text) == (
        "write it with `python tools/export_model.py -p x`, then paddlevideo-fast zoo, "
        "python data/pack_frames.py"
    )
    started("/elsewhere/paddlevideo_fast/__main__.py")
    assert as_started(text).count("python -m paddlevideo_fast") == 3
    assert program("data pack") == "python -m paddlevideo_fast data pack"
    started(ROOT / "main.py")
    assert (program("train"), program("data pack")) == ("main.py", "data/pack_frames.py")
    assert as_started("paddlevideo-fast test -w x") == "python main.py --test -w x"
    started("/elsewhere/main.py")
    assert program("train") == "paddlevideo-fast train"


def test_texts_name_commands_that_exist():
    for path in sorted((ROOT / "paddlevideo_fast").rglob("*.py")):
        for group, name in re.findall(r"paddlevideo-fast( data)? ([a-z0-9]+)", path.read_text("utf-8")):
            assert f"{group} {name}".strip() in ALL, path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "commands:\n  init"),
        (["zoo", "tsm", "k400", "largebatch"], 0, "tsm_k400_largebatch  ResNetTSM 50  Kinetics-400, videos"),
        (
            ["zoo", "tsm_k400_vidos"],
            2,
            "no built-in config is called tsm_k400_vidos; did you mean",
        ),
        (["--version"], 0, f"paddlevideo-fast {paddlevideo_fast.__version__}\n"),
        (["--help"], 0, "Exit code: 0, done; 1, some files failed"),
        (["trian"], 2, "there is no command 'trian'; did you mean 'train'?"),
        (["data"], 2, "commands:\n  list"),
        (["data", "--help"], 0, "data COMMAND --help has the options of one"),
        (["data", "apck", "--list", "x"], 2, "data: there is no command 'apck'; did you mean 'pack'?"),
        (["data", "check"], 2, "error: give --list, an annotation list, or --root, a folder"),
        (["train"], 2, "train: error: the following arguments are required: -c/--config"),
        (["train", "-c", "tsm_motoin"], 2, "did you mean tsm_motion, tsn_motion"),
        (["-c", "tsm_motoin", "--test"], 2, "did you mean tsm_motion, tsn_motion"),
        (["predict", "-i", "x", "--model_file", "y"], 2, "paddlevideo-fast export writes it"),
    ],
)
def test_what_a_command_line_says(words, code, said, capsys):
    try:
        ended = commands.main(words)
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert said in "".join(capsys.readouterr())


def test_test_is_train_with_a_flag(monkeypatch):
    seen = []
    monkeypatch.setattr("paddlevideo_fast.cli.train._run", lambda args: seen.append(args.test))
    for words in (["test"], ["train", "--test"], ["train"]):
        assert commands.main([*words, "-c", "tsm_motion"]) == 0
    assert seen == [True, True, False]


def test_help_is_there_at_once():
    script = (
        "import sys\n"
        "from paddlevideo_fast.cli.commands import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print(*sorted({'paddle', 'cv2', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    for name in ("", "train", "predict", "doctor", "data"):
        words = [*name.split(), "--help"]
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.endswith("\n\n"), name


def test_output_without_a_reader_ends_quietly():
    done = subprocess.run(
        f"{sys.executable} -m paddlevideo_fast zoo | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "141\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
