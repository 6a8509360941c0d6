"""Each command of the pages is one that our parsers take, with a config that loads, or has a reason here.

A shell without any program goes through the blocks of a page and notes what it would start, so loops,
variables and pipes count. `test_docs.py` runs the blocks that are marked for it.
"""

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.measuring import ROOT
from paddlevideo_fast.apps.init.new_config import recipe_of
from paddlevideo_fast.cli.commands import COMMANDS, Group, build_parser
from paddlevideo_fast.cli.train import overrides_of
from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.builtin import find_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.jobs import flags
from test_tipc.compare_results import parse_args as parse_comparison
from tests.docs.test_docs import PAGES, blocks, name_of
from tools.benchmark import parser_of

# Programs that are not ours, with why a test cannot start them.
NOT_OURS = {
    "installs packages": "pip python--m-pip python--m-venv python3--m-venv",
    "downloads or unpacks data, which is large": "bash cat curl git mv tar unrar unzip wget",
    "changes folders of the user": "ln mkdir touch",
    "needs PaddleX, which has a trial of its own, `make test-paddlex`": "python--c",
    "needs a cluster or its tools": "awk dask head scontrol srun",
    "needs Docker": "docker",
    "needs a camera": "ffmpeg",
    "is the viewer of another project": "tensorboard visualdl wandb",
}

BENCHMARK = ("python", "tools/benchmark.py")
CLAIMS = ROOT / "docs" / "en" / "benchmarks.md"

_NOTING = """command_not_found_handle() { printf '%s\\0' "$@" $'\\036' >> "$NOTES"; }\n"""


def commands_of(script: str, folder: Path) -> list[list[str]]:
    """What a shell would start for a script, as words; nothing is started and nothing is written."""
    script = re.sub(r"\s>\s*\S+|\bexec ", "", script)
    notes = folder / "notes"
    notes.write_text("")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", _NOTING + script],
        cwd=folder,
        env={
            "PATH": str(folder / "none"),
            "HOME": str(folder),
            "NOTES": str(notes),
            "SLURM_ARRAY_TASK_ID": "0",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "syntax error" not in done.stderr, done.stderr
    noted = [record.split("\0")[:-1] for record in notes.read_text().split("\036\0")[:-1]]
    scripts = [words[words.index("-c") + 1] for words in noted if "bash" in words and "-c" in words]
    return [*noted, *(words for inner in scripts for words in commands_of(inner, folder))]


def parsed(words: list[str]) -> argparse.Namespace:
    """What the parsers make of the words of `paddlevideo-fast`; behind launch, of those of the command."""
    group, rest = build_parser(), words
    while isinstance(group.commands[rest[0]], Group):
        group, rest = group.commands[rest[0]].make_parser(), rest[1:]
    parser = group.commands[rest[0]].make_parser()
    parser.allow_abbrev = False  # pages name flags in full
    found = parser.parse_args(rest[1:])
    if rest[0] == "launch":
        return parsed(found.words[[Path(word).name for word in found.words].index("process.py") + 1 :])
    found.command = " ".join(words[: len(words) - len(rest) + 1])
    return found


def understood(words: list[str]) -> argparse.Namespace | None:
    """A command of this repository as its parser understands it; None: another program."""
    for i, word in enumerate(words):
        if word == "paddlevideo-fast" and (i == 0 or words[i + 1] in COMMANDS):  # `docker build -t` names it
            return argparse.Namespace() if words[i + 1 :] == ["--version"] else parsed(words[i + 1 :])
        if word == "tools/main.py":
            return parsed(["train", *words[i + 1 :]])
    if words[:2] == [*BENCHMARK]:
        if words[2:] in ([], ["--help"]):
            return argparse.Namespace()
        return parser_of(words[2], importlib.import_module(f"benchmarks.{words[2]}")).parse_args(words[3:])
    if words[:2] == ["python", "test_tipc/compare_results.py"]:
        return parse_comparison(words[2:])
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), "no such target"
        return argparse.Namespace()
    files = words[3:] if words[:3] == ["python", "-m", "pytest"] else []
    files += words[1:3] if words[0] == "bash" and words[1].startswith("test_tipc/") else []
    assert all((ROOT / file).exists() for file in files), "no such file"
    return argparse.Namespace() if files else None


def program(words: list[str]) -> str:
    """What a command starts: its name, for Python with what follows -m."""
    is_python = words[0].startswith("python")
    return "-".join([words[0], *(words[1:3] if words[1] == "-m" else words[1:2])]) if is_python else words[0]


def write_config(path: Path, base: str) -> None:
    """A config that inherits all, as `init`, `config copy` and a run leave it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"_BASE_: {Path(find_config(base)).absolute()}\n")


def check_configs(found: argparse.Namespace) -> int:
    """Loads the config of a command with its overrides, in each row of a benchmark. Returns how many."""
    config, command = getattr(found, "config", None), getattr(found, "command", "")
    if command == "init":
        write_config(found.output / "config.yaml", recipe_of(found.recipe or "tsm", has_gpu=False))
    if command == "config copy":
        write_config(Path(found.target or Path(config).with_suffix(".yaml").name), config)
    if config is None:
        return 0
    if not Path(config).exists():
        config = found.config = config.removeprefix("output/")  # a run of an earlier page
    rows = [(config, found.override)] if hasattr(found, "override") else []
    if command in ("train", "test"):
        rows = [(config, overrides_of(found)[0])]
    if command == "train":
        write_config(Path(found.output or f"output/{Path(config).stem}") / "config.yaml", config)
    for _, *words in getattr(found, "row", None) or []:
        files = [word for word in words if "=" not in word]
        rows.append(([config, *files][-1], [*found.override, *(word for word in words if "=" in word)]))
    rows += [(config, [*found.override, *side]) for side in getattr(found, "side", None) or []]
    for file, overrides in rows or [(config, [])]:
        load_config(file, overrides)
    return len(rows)


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> dict[str, list[list[str]]]:
    """The commands of each page; pages in Chinese have the same blocks."""
    folder = tmp_path_factory.mktemp("shell")
    scripts = {
        name_of(page): "\n".join(block.code for block in blocks(page) if block.lang in ("bash", "sh"))
        for page in PAGES
        if page.parent.name != "zh-CN" and page.name != "README_cn.md"
    }
    return {name: commands_of(script, folder) for name, script in scripts.items() if script}


def test_the_commands_of_the_claims_are_benchmarks_with_their_options(capsys):
    """A line of a table ends with what follows `python tools/benchmark.py`, or with our command."""
    text = CLAIMS.read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| `([^`|]+)`[^|]* \|$", text, re.M)
    assert len(rows) == text.count("\n|") - 2 * text.count("<!-- results") > 40  # without their heads
    for words in map(shlex.split, rows):
        try:
            if words != ["runs"]:  # whose command in full is linked
                assert understood(words if words[0] == "paddlevideo-fast" else [*BENCHMARK, *words])
        except SystemExit:
            pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


def test_our_parsers_take_the_commands_and_their_configs_load(started, tmp_path, monkeypatch, capsys):
    made = {
        words[words.index("--output") + 1] for page in started.values() for words in page if "init" in words
    }
    monkeypatch.setitem(flags._SHARED["--data_prefix"], "type", Path)  # the folder need not exist here
    num_parsed = num_configs = 0
    others: dict[str, str] = {}
    for page, commands in started.items():
        folder = tmp_path / page.replace("/", "_")
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name in made:  # on another page
            write_config(folder / name / "config.yaml", "tsm_small")
        for block in blocks(ROOT / page):
            if block.mark == "file":
                (folder / block.text).write_text(block.code)
        for words in commands:
            try:
                found = understood(words)
                num_configs += check_configs(found) if found else 0
            except (PaddleVideoFastError, AssertionError, KeyError, SystemExit) as error:
                if not (isinstance(error, SystemExit) and not error.code):  # of --help
                    pytest.fail(f"{page}: {shlex.join(words)}: {error!r} {capsys.readouterr().err}")
                continue
            if found is None:
                others[program(words)] = f"{page}: {shlex.join(words)}"
            else:
                num_parsed += 1
    known = {name for names in NOT_OURS.values() for name in names.split()}
    assert {name: where for name, where in others.items() if name not in known} == {}
    assert known - set(others) == set(), "NOT_OURS: no page has these"
    assert num_parsed > 150
    assert num_configs > 80
