"""What a user can type today: `python tests/compat/present.py commands`, or `config`, prints it as YAML.

`test_compat.py` compares it with the lists beside this file. Whoever adds a command, a flag or a key that is
to stay adds it to the list, by hand or from the output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

ROOT = Path(__file__).resolve().parents[2]

Flags = dict[str, str]
Keys = dict[str, dict[str, Any]]


def options_of(command: str) -> Flags:
    """The options of a command, such as `tools/benchmark.py reader`, from the parser whose --help it prints.

    The key is the option's names, `-c --config`; the value says what follows and whether it must be given:
    `nothing`, `one`, `many`, or `one of A B`, then `repeated` and `required`. Words without a dash stand
    under the key `words`, in their order.
    """
    module = command.startswith("-m ")
    script, *words = command.split()[1:] if module else command.split()
    parsers: list[argparse.ArgumentParser] = []
    code: Any = None

    def keep(parser: argparse.ArgumentParser, file: Any = None) -> None:
        parsers.append(parser)

    with mock.patch.object(argparse.ArgumentParser, "print_help", keep), _as_before():
        sys.argv = [script, *words, "--help"]
        try:
            if module:
                runpy.run_module(script, run_name="__main__")
            else:
                sys.path.insert(0, str(ROOT / Path(script).parent))
                runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            code = end.code
    assert code in (0, None), f"{command} --help ends with {code}"
    assert len(parsers) == 1, f"{command} --help printed {len(parsers)} helps"
    options: Flags = {}
    positional: list[str] = []
    for action in parsers[0]._actions:
        if not action.option_strings:
            positional.append(_takes(action))
        elif not isinstance(action, argparse._HelpAction):
            options[" ".join(action.option_strings)] = _takes(action)
    return {**options, **({"words": ", ".join(positional)} if positional else {})}


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """What a script changes in its process is undone."""
    argv, path, cores = sys.argv, list(sys.path), os.sched_getaffinity(0)
    try:
        with mock.patch.dict(os.environ):
            yield
    finally:
        sys.argv, sys.path[:] = argv, path
        os.sched_setaffinity(0, cores)


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0:
        text = "nothing"
    elif action.nargs in ("+", "*", argparse.REMAINDER):
        text = "many"
    elif action.choices:
        text = "one of " + " ".join(map(str, action.choices))
    else:
        text = "one"
    repeated = " repeated" if isinstance(action, argparse._AppendAction) else ""
    required = (action.option_strings and action.required) or (
        not action.option_strings and action.nargs in (None, "+")
    )
    return text + repeated + (" required" if required else "")


def config_keys(reference: str) -> Keys:
    """The keys of a config from the text of its reference: {heading: {argument: default}}.

    The heading of a component follows its section's, `MODEL.backbone ResNetTSM`. The default is the page's,
    `required` where there is none, and `ignored` for keys that are accepted without effect.
    """
    keys: Keys = {}
    section, here, ignored = "", "top level", False
    for line in reference.splitlines():
        heading = re.match(r"(#{2,}) (.+)", line)
        if heading:
            name = heading.group(2)
            is_section = re.match(r"[A-Z_]+(\.|$)", name)  # X3D is none
            section, here = (name, name) if is_section else (section, f"{section} {name}")
            ignored = False
        elif line.startswith("Accepted without effect:"):
            ignored = True
        elif line and not line.startswith(("-", "|")):
            ignored = False
        row = re.match(r"\| `(\w+)` \| .+? \| (.+?) \| ", line.replace(r"\|", "¦"))
        item = re.match(r"- `(\w+)`: ", line)
        if row:
            keys.setdefault(here, {})[row.group(1)] = yaml.safe_load(row.group(2).strip("`"))
        elif heading:
            keys.setdefault(here, {})
        elif item and ignored:
            keys.setdefault(here, {})[item.group(1)] = "ignored"
    return keys


def read_list(name: str) -> Mapping[str, Any]:
    """The list `name` beside this file."""
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def main(argv: Sequence[str]) -> None:
    """Prints what is there now, for the commands that the list has or for those that are named."""
    found: Mapping[str, Any]
    if argv[0] == "config":
        sys.path.insert(0, str(ROOT))
        from tools.config_reference import reference

        found = config_keys(reference("en"))
    else:
        found = {command: options_of(command) for command in argv[1:] or read_list("commands")}
    print(yaml.safe_dump(found, sort_keys=False, width=110, allow_unicode=True), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
