"""`paddlevideo-fast`: its subcommands."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paddlevideo_fast
from paddlevideo_fast.apps.data.command import TOOLS, Tool
from paddlevideo_fast.cli import commands
from paddlevideo_fast.cli.command import find_weights
from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.builtin import built_in
from paddlevideo_fast.errors import WeightError
from tests.support.json_lines import entries_of

ROOT = Path(__file__).resolve().parents[2]
IS_INSTALLED = any(each.name == "paddlevideo_fast" for each in importlib.metadata.distributions())
ALL = {**commands.COMMANDS, **{f"data {name}": tool for name, tool in TOOLS.items()}}


@pytest.mark.parametrize("name", ALL)
def test_each_command_names_itself(name):
    assert ALL[name].make_parser().prog == f"paddlevideo-fast {name}"


@pytest.mark.skipif(not IS_INSTALLED, reason="needs the package installed: make setup-test")
def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    """As in the folder above a clone, whose own folder is called paddlevideo_fast."""
    (tmp_path / "paddlevideo_fast").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (
        ["-m", "paddlevideo_fast", "--version"],
        ["-c", "import paddlevideo_fast as p; print(p.__version__)"],
    ):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split()[-1] == paddlevideo_fast.__version__


def test_texts_name_commands_that_exist():
    for path in sorted((ROOT / "paddlevideo_fast").rglob("*.py")):
        for group, name in re.findall(r"paddlevideo-fast( data)? ([a-z0-9]+)", path.read_text("utf-8")):
            assert f"{group} {name}".strip() in ALL, path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "commands:\n  init"),
        (
            ["zoo", "tsm", "k400", "largebatch"],
            0,
            "tsm_k400_largebatch  ResNetTSM 50  24.3 M      Kinetics-400, videos",
        ),
        (["zoo", "tsm_k400_vidos"], 2, "no built-in config is called tsm_k400_vidos; did you mean"),
        (["zoo", "zzz"], 2, "is called zzz; paddlevideo-fast zoo  lists all\n"),
        (["--version"], 0, f"paddlevideo-fast {paddlevideo_fast.__version__}\n"),
        (["--help"], 0, "Exit code: 0,"),
        (["--help"], 0, "Examples:\n    paddlevideo-fast init videos --output my_set"),
        (["trian"], 2, "UsageError: there is no command 'paddlevideo-fast trian'; did you mean 'train'?"),
        (["data"], 2, "commands:\n  list"),
        (["data", "--help"], 0, "data COMMAND --help  shows the flags of a command"),
        (["data", "apck", "--list", "x"], 2, "no command 'paddlevideo-fast data apck'; did you mean 'pack'?"),
        (["data", "check"], 2, "UsageError: LIST is missing"),
        (["train"], 2, "UsageError: CONFIG is missing: YAML file, name of a built-in config, or folder"),
        (["train", "a", "-c", "b"], 2, "UsageError: CONFIG: is given twice, as a and by -c"),
        (
            ["train", "--resume", "my_set"],
            2,
            "--resume took my_set as its value; write CONFIG before --resume, as in  paddlevideo-fast train "
            "my_set --resume; ",
        ),
        (
            ["average", "--last", "2", "-w", "a", "b"],
            2,
            "as in  paddlevideo-fast average b --weights WEIGHTS ...;",
        ),
        (
            ["export", "a", "-p", "x"],
            2,
            "-p is now --weights",
        ),
        (["train", "a", "--max-iters=x"], 2, "UsageError: --max_iters: 'x' is no whole number from 1 on; "),
        (["train", "a", "--epoch_s=3"], 2, "--epoch_s=3; did you mean '--epochs'?; paddlevideo-fast"),
        (["export", "a", "-o", "inf"], 2, "-o inf: is no KEY=VALUE; the output folder is  --output inf;"),
        (["predict"], 2, "UsageError: --input_file is missing: a video, a folder"),
        (["completion"], 2, "UsageError: SHELL is missing: shell to complete in"),
        (["data", "pack", "--short-side=-1"], 2, "UsageError: --short_side: '-1' is no whole number from 0"),
        (["train", "tsm_motoin"], 2, "did you mean tsm_motion, tsn_motion"),
        *(
            (
                ["train", "tsm_motion", flag, "1"],  # a schedule is not replaced by a number
                2,
                f"key of the config: -o {key}=VALUE  sets it; paddlevideo-fast",
            )
            for flag, key in (
                ("--lr", "OPTIMIZER.learning_rate.cosine_base_lr"),
                ("--learning-rate", "OPTIMIZER.learning_rate.cosine_base_lr"),
                ("--weight_decay", "OPTIMIZER.weight_decay"),
                ("--num_workers", "DATASET.num_workers"),
                ("--save_interval", "save_interval"),
                ("--num_classes", "MODEL.head.num_classes"),
            )
        ),
        (
            ["train", "--lr", "1", "tsm_motion"],
            2,
            "-o OPTIMIZER.learning_rate.cosine_base_lr=VALUE  sets it;",
        ),
        (["train", "none", "--lr=1"], 2, "key of the config: -o OPTIMIZER.learning_rate=VALUE  sets it;"),
        (["train", "tsm_motion", "--xy", "1"], 2, "unrecognized arguments: --xy 1; paddlevideo-fast"),
        (["-c", "tsm_motoin", "--test"], 2, "did you mean tsm_motion, tsn_motion"),
        (["predict", "-i", "x", "--model_file", "y"], 2, "x: there is no such file or folder; paths start"),
        (["predict", "-i", __file__, "--model_file", "y"], 2, "that paddlevideo-fast export has written"),
    ],
)
def test_what_a_command_line_says(words, code, said, capsys):
    try:
        ended = commands.main(words)
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        ("features tsm_motion --output out", True),
        ("features tsm_motion --output out --dry_run", False),
        ("data check x.list --output_file clean.list", True),
        ("data check x.list", False),
        ("data report x.list", True),
        ("data prepare x.list --output out --dry_run", False),
        ("zoo", False),
    ],
)
def test_ctrl_c_prints_the_command_that_goes_on_with_what_is_written(words, goes_on, monkeypatch, capsys):
    def interrupted(self, words):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tool, "run", interrupted)
    monkeypatch.setattr(commands.Command, "run", interrupted)
    assert commands.main(words.split()) == 130
    assert capsys.readouterr().err == f"interrupted{f'; to go on:  paddlevideo-fast {words}' * goes_on}\n"


def test_test_is_train_with_a_flag(monkeypatch):
    seen = []
    monkeypatch.setattr("paddlevideo_fast.cli.train.run", lambda args: seen.append(args.test))
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


def test_each_flag_has_both_spellings():
    for name, command in ALL.items():
        flags = {flag for action in command.make_parser()._actions for flag in action.option_strings}
        for sign, other in ("_-", "-_"):
            assert {flag[:2] + flag[2:].replace(sign, other) for flag in flags} <= flags, name


def test_a_config_is_shown_and_copied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert commands.main(["config", "show", "tsm_motion", "-o", "seed=3"]) == 0
    Path("shown.yaml").write_text(capsys.readouterr().out)
    assert commands.main(["config", "show", "tsm_motion", "-o", "seed=3", "--json"]) == 0
    assert entries_of(capsys.readouterr().out) == [load_config("shown.yaml")]
    assert commands.main(["config", "copy", "tsm_motion"]) == 0
    assert (
        "tsm_motion.yaml: written. Next:  paddlevideo-fast train tsm_motion.yaml" in capsys.readouterr().out
    )
    assert commands.main(["config", "copy", "tsm_k400_videos", "mine.yaml"]) == 0
    plain = load_config(built_in("tsm_motion"))
    assert load_config("shown.yaml") == {**plain, "seed": 3}
    assert load_config("tsm_motion.yaml") == plain  # the text, with its comments
    assert Path("tsm_motion.yaml").read_text() == Path(built_in("tsm_motion")).read_text()
    assert "_BASE_" not in Path("mine.yaml").read_text()
    assert load_config("mine.yaml") == load_config("tsm_k400_videos")
    capsys.readouterr()
    assert commands.main(["config", "copy", "tsm_motion"]) == 2
    assert "OutputError: tsm_motion.yaml: is there already" in capsys.readouterr().err


def test_weights_of_a_run_and_of_the_newest_run_of_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("model_name: m\nepochs: 1\nMODEL: {}\n")
    cfg = load_config("mine.yaml", check=False)
    with pytest.raises(
        WeightError, match=r"'output/mine' holds no weights: train with  paddlevideo-fast train mi"
    ):
        find_weights(None, cfg)
    for time, run in enumerate(("mine", "mine_2", "given"), 1):
        Path("output", run).mkdir(parents=True)
        Path("output", run, "m_best.pdparams").touch()
        os.utime(f"output/{run}/m_best.pdparams", (time, time))
    assert find_weights("a.pdparams") == "a.pdparams"
    assert find_weights("output/given") == "output/given/m_best.pdparams"
    assert find_weights(None, cfg) == "output/mine_2/m_best.pdparams"
    explicit = load_config("mine.yaml", ["output_dir=output/mine"], check=False)
    assert find_weights(None, explicit) == "output/mine/m_best.pdparams"
    explicit.save("output/given/config.yaml")  # moved since the run: its own weights come first
    assert find_weights(None, load_config("output/given", check=False)) == "output/given/m_best.pdparams"
