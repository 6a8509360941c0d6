"""What the command lines of all commands have in common; docs/en/command_line.md says it to users."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from paddlevideo_fast.cli.commands import COMMANDS, Group
from paddlevideo_fast.errors import UsageError


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, command in COMMANDS.items():
        parser = command.make_parser()
        if isinstance(command, Group):
            yield from ((f"{name} {part}", one.make_parser()) for part, one in parser.commands.items())
        else:
            yield name, parser


PARSERS = dict(parsers())
WORDS = {"CONFIG", "MODEL", "LIST", "ROOT", "FOLDER", "SRC_DIR", "OUT_DIR", "TARGET", "WORD", "SHELL"}
each_command = pytest.mark.parametrize("name", PARSERS)

# flags that take other values, or stand in another group, in a command; why
OTHER_VALUES = {
    ("average", "--weights"): "averages several",
    ("predict", "--config"): "MODEL is its input; the config is for weights alone",
    ("serve", "--config"): "MODEL is its input; the config is for weights alone",
    ("train", "--resume"): "PaddleVideo's data script has a --resume without effect",
    ("data extract", "--resume"): "PaddleVideo's data script has a --resume without effect",
    ("data extract", "--list"): "SRC_DIR is its word; a list stands in place of it",
    ("data extract", "--root"): "PaddleVideo's word SRC_DIR",
    ("data extract", "--output"): "PaddleVideo's word OUT_DIR",
    ("data extract", "--short_side"): "0 leaves the size as it is",
    ("data prepare", "--short_side"): "H.264 takes even sizes alone",
    ("data list", "--root"): "must be given; public sets have a folder by default",
    ("data list", "--kind"): "its values are found by looking at ROOT",
    ("data ucf101", "--splits"): "the official ones",
    ("predict", "--backend"): "what runs a program",
    ("convert", "--output_file"): "must be given",
    ("data convert", "--output_file"): "must be given",
    ("data convert", "--from"): "has two values alone, which help lists",
    **{(name, "--output"): "must be given" for name in ("init", "features", "data prepare", "data pack")},
}
WITHOUT_JSON = {
    "serve": "its results are its answers, which are JSON",
    "launch": "Paddle's launcher prints what the processes print",
    "completion": "its result is a script",
    "config copy": "its result is the file that the user names",
}


def flags_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """First long name → action, for the flags of a parser, in the order of its help."""
    actions = [action for group in parser._action_groups for action in group._group_actions]
    names = (
        (next((name for name in one.option_strings if name.startswith("--")), ""), one) for one in actions
    )
    return {name: action for name, action in names if name not in ("", "--help")}


def group_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return next(str(group.title) for group in parser._action_groups if action in group._group_actions)


@each_command
def test_the_input_is_a_word_without_a_flag(name):
    """PaddleVideo's spellings `--list`, `--root` and `-c` stay, and mean the same."""
    parser = PARSERS[name]
    words = {action.metavar or action.dest for action in parser._actions if not action.option_strings}
    assert words <= WORDS
    of_flags = {"--config": {"CONFIG"}, "--list": {"LIST", "SRC_DIR"}, "--root": {"ROOT", "SRC_DIR"}}
    for flag, names in of_flags.items():
        assert flag not in flags_of(parser) or words & {*names, "MODEL"}, flag


@each_command
def test_an_output_is_a_folder_and_a_file_has_its_own_flag(name):
    flags = flags_of(PARSERS[name])
    assert "--output" not in flags or flags["--output"].metavar == "FOLDER"
    assert "--output_file" not in flags or flags["--output_file"].metavar == "FILE"
    assert not {"DIR", "PATHS"} & {action.metavar for action in flags.values()}


def test_results_are_json_too():
    """One flag, with one help; a command without it has a reason."""
    flags = {name: flags_of(parser) for name, parser in PARSERS.items()}
    assert {name for name in PARSERS if "--json" not in flags[name]} == WITHOUT_JSON.keys()
    assert len({flags[name]["--json"].help for name in PARSERS.keys() - WITHOUT_JSON}) == 1


def test_one_name_has_one_meaning():
    """The same flag takes the same kind of value, and stands in the same group of the help."""
    meanings: dict[str, dict[tuple, list[str]]] = {}
    for name, parser in PARSERS.items():
        for flag, action in flags_of(parser).items():
            if (name, flag) not in OTHER_VALUES:
                what = (action.metavar, action.nargs, type(action).__name__, group_of(parser, action))
                meanings.setdefault(flag, {}).setdefault(what, []).append(name)
    assert {flag: ways for flag, ways in meanings.items() if len(ways) > 1} == {}


def test_shared_flags_stand_in_one_order():
    """Whichever two flags two commands share, their helps list them in the same order."""
    before: dict[tuple[str, str], str] = {}
    crossed = set()
    for name, parser in PARSERS.items():
        flags = [flag for flag in flags_of(parser) if (name, flag) not in OTHER_VALUES]
        for number, first in enumerate(flags):
            for second in flags[number + 1 :]:
                before.setdefault((first, second), name)
                if (second, first) in before:
                    crossed.add((name, before[second, first], first, second))
    assert crossed == set()


@each_command
def test_help_is_a_sentence_examples_and_three_groups(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = PARSERS[name].format_help()
    sentence, examples, *_ = text.split("\n\n")
    assert re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", sentence.strip()), "one sentence"
    first, *lines = examples.splitlines()
    assert first in ("Example:", "Examples:")
    commands = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    assert len(commands) >= 2
    titles = re.findall(r"^(what it needs|what you may want|rare|\w[\w ]*):$", text, re.M)
    assert set(titles) <= {"Example", "Examples", "what it needs", "what you may want", "rare"} | {
        title for title in titles if title.startswith(("Writes", "MODEL", "Ask", "A head"))
    }
    assert max(map(len, text.splitlines())) <= 100


@each_command
def test_the_examples_of_a_help_are_accepted(name):
    parser = PARSERS[name]
    examples = parser.description.split("\n\n")[1].splitlines()[1:]
    for line in examples:
        words = shlex.split(line.partition(" > ")[0])
        assert " ".join(words).startswith(f"paddlevideo-fast {name}")
        message = ""
        try:
            parser.parse_args(words[1 + len(name.split()) :])
        except UsageError as error:
            message = str(error)
        assert not message or "no such folder" in message  # of the example, which is not here


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data check x.list --output clean.list", "--output is now --output_file"),
        ("data check --root videos", "--root is now LIST"),
        ("data convert x.json --from epic --output x.jsonl", "--output is now --output_file"),
        ("average my_set --last 2 --output mean.pdparams", "--output is now --output_file"),
        ("data pack x.list --output out --classes x.txt", "--classes is now --class_names"),
        ("data pack x.list --output out --shard 0/2", "--shard is now --job"),
        ("data extract videos out --backend cv2", "--backend is now --decoder"),
        ("data ucf101 --split 1", "--split is now --splits"),
        ("init videos --output out --valid valid.csv", "--valid is now --valid_list"),
        ("init videos --output out --classes=x.txt", "--classes is now --class_names"),
        ("export my_set --format pdmodel", "--format is now --program_format"),
        ("test my_set -p x.pdparams", "-p is now --weights"),
    ],
)
def test_an_earlier_spelling_names_the_new_one(words, message):
    name = next(name for name in sorted(PARSERS, key=len, reverse=True) if words.startswith(name))
    with pytest.raises(UsageError, match=re.escape(message)):
        PARSERS[name].parse_args(words.split()[len(name.split()) :])
