"""Prints a script that completes commands, options, choices, files and names of built-in configs in a shell.

Examples:
    paddlevideo-fast completion bash > ~/.local/share/bash-completion/completions/paddlevideo-fast
    paddlevideo-fast completion zsh > ~/.zfunc/_paddlevideo-fast
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlevideo_fast.cli.commands import COMMANDS, Command, GroupParser
from paddlevideo_fast.command_line import PROGRAM, CommandParser
from paddlevideo_fast.config.builtin import built_in_configs
from paddlevideo_fast.extras import needing

_CONFIGS = "_paddlevideo_fast_config_files"  # shtab knows by "_file" that these may be files


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast completion`."""
    parser = CommandParser("completion", __doc__)
    parser.add_argument(
        "shell", metavar="SHELL", choices=("bash", "zsh"), help="shell to complete in: bash or zsh"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    """Prints the script; 2: a package is missing."""
    with needing("", "completion"):
        import shtab
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--version", action="store_true")
    _add(parser, COMMANDS, shtab.FILE)
    print(shtab.complete(parser, args.shell, preamble=_preambles()[args.shell]))


def _add(parser: argparse.ArgumentParser, commands: Mapping[str, Command], files: Any) -> None:
    """Adds commands to a parser as its subcommands; what takes text completes `files`."""
    subcommands = parser.add_subparsers()
    for name, command in commands.items():
        made = command.make_parser()
        if isinstance(made, GroupParser):
            _add(subcommands.add_parser(name, help=command.text), made.commands, files)
            continue
        added = subcommands.add_parser(name, help=command.text, parents=[made], add_help=False)
        for action in added._actions:
            if action.dest in ("config", "CONFIG"):
                action.complete = {"bash": _CONFIGS, "zsh": _CONFIGS}  # type: ignore[attr-defined]
            elif action.nargs != 0 and not action.choices and action.type in (None, Path):
                action.complete = files  # type: ignore[attr-defined]


def _preambles() -> dict[str, str]:
    """By shell: the function that completes `-c`."""
    names = " ".join(built_in_configs())
    return {
        "bash": f"""{_CONFIGS}() {{
  compgen -W "{names}" -- "$1"
  compgen -f -X '!*.y*ml' -- "$1"
  compgen -d -- "$1"
}}""",
        "zsh": f"""{_CONFIGS}() {{
  _alternative 'configs:built-in config:({names})' 'files:file:_files -g "*.y(a|)ml"'
}}""",
    }
