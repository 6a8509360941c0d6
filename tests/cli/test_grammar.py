"""What the command lines of all commands have in common."""

from collections.abc import Iterator

import pytest

from paddlevideo_fast.cli.commands import COMMANDS, Group


def parsers() -> Iterator[tuple[str, object]]:
    for name, command in COMMANDS.items():
        parser = command.make_parser()
        if isinstance(command, Group):
            yield from ((f"{name} {part}", one.make_parser()) for part, one in parser.commands.items())
        else:
            yield name, parser


@pytest.mark.parametrize(
    ("name", "parser"), parsers(), ids=lambda each: each if isinstance(each, str) else ""
)
def test_the_input_is_a_word_without_a_flag(name, parser):
    """PaddleVideo's spellings `--list`, `--root` and `-c` stay, and mean the same."""
    words = {action.metavar or action.dest for action in parser._actions if not action.option_strings}
    flags = {flag for action in parser._actions for flag in action.option_strings}
    of_flags = {"--config": {"CONFIG"}, "--list": {"LIST", "SRC_DIR"}}
    for flag, names in of_flags.items():
        assert flag not in flags or words & {*names, "MODEL"}, flag
