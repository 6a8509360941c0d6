"""`paddlevideo-fast config`: shows a config as it is run, or copies one."""

import argparse
import os
import shlex
from pathlib import Path

from paddlevideo_fast.cli.command import add_config_arguments, load_for_run, print_result, quiet_import
from paddlevideo_fast.cli.commands import Command, GroupParser
from paddlevideo_fast.command_line import JSON, PROGRAM, CommandParser
from paddlevideo_fast.config.builtin import find_config
from paddlevideo_fast.config.load import check_config, import_plugins, load_config
from paddlevideo_fast.config.yaml_source import dump, parse
from paddlevideo_fast.errors import OutputError
from paddlevideo_fast.io.files import atomic_write_text, read_text

_NOT_COPIED = ("_BASE_", "imports", "paths")  # keys that mean another file in another folder


_VERBS: dict[str, Command] = {
    "show": Command(__name__, "print a config with all that it inherits", "show_parser", function="show"),
    "copy": Command(__name__, "write a copy of a config, to change it", "copy_parser", function="copy"),
}


def build_parser() -> GroupParser:
    """The parser of `paddlevideo-fast config`."""
    return GroupParser("config", _VERBS, "Shows a config as it is run, or copies one to change it.")


def show_parser() -> CommandParser:
    """The parser of `paddlevideo-fast config show`."""
    parser = CommandParser("config show", show.__doc__)
    add_config_arguments(parser)
    parser.add_argument("--json", **JSON)
    return parser


def show(args: argparse.Namespace) -> None:
    """Checks a config and prints it as YAML, with everything that it inherits.

    Examples:
        paddlevideo-fast config show tsm_motion
        paddlevideo-fast config show my_set -o epochs=5
    """
    print_result(dict(load_for_run(args)), args.json, lambda config: dump(config).rstrip("\n"))


def copy_parser() -> CommandParser:
    """The parser of `paddlevideo-fast config copy`."""
    parser = CommandParser("config copy", copy.__doc__)
    parser.add_argument("config", metavar="CONFIG", help="YAML file, folder, or name of a built-in config")
    parser.add_argument(
        "target", metavar="TARGET", nargs="?", default="", help="file or folder (default: the working folder)"
    )
    return parser


def copy(args: argparse.Namespace) -> None:
    """Writes a copy of a config for you to change, with what the config inherits.

    Examples:
        paddlevideo-fast config copy tsm_motion
        paddlevideo-fast config copy tsm_motion my_motion.yaml
    """
    source = find_config(args.config)
    config = load_config(source, check=False)
    target = Path(args.target)
    if not args.target or target.is_dir() or args.target.endswith(os.sep):
        target = target / f"{config.name}.yaml"
    text = read_text(source, os.path.getsize(source))
    if set(_NOT_COPIED) & set(parse(text, source).data):
        with quiet_import():  # the check imports Paddle
            import_plugins(config)
            check_config(config)  # takes out what was written for components that the config replaces
        text = f"# {args.config}, with all that it inherits.\n{dump(dict(config))}"
    if target.exists():
        raise OutputError(f"{target}: is there already; give another file, or remove it")
    atomic_write_text(target, text)
    print(f"{target}: written. Next:  {PROGRAM} train {shlex.quote(str(target))}")
