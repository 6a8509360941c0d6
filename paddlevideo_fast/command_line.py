"""What a command line is made of: the parser of all commands, and types of values.

Each flag may be written with - in place of _, and help shows it with _. A wrong command line is a
`UsageError`.
"""

import argparse
import copy
import inspect
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from paddlevideo_fast import annexes
from paddlevideo_fast.errors import UsageError
from paddlevideo_fast.registry import did_you_mean

PROGRAM = "paddlevideo-fast"
Rules = Callable[[argparse.ArgumentParser, argparse.Namespace], None]


def count(lowest: int, highest: int | None = None, even: bool = False) -> Callable[[str], int]:
    """An argparse type: a whole number from `lowest` on, or from `lowest` to `highest`."""
    wanted = f"from {lowest} on" if highest is None else f"from {lowest} to {highest}"

    def convert(text: str) -> int:
        value = int(text) if re.fullmatch(r"[0-9]+", text) else -1
        if not lowest <= value <= (value if highest is None else highest) or (even and value % 2):
            raise argparse.ArgumentTypeError(f"{text!r} is no {'even' if even else 'whole'} number {wanted}")
        return value

    return convert


def option(text: str | None = None, **keywords: Any) -> dict[str, Any]:
    """An option of a table: its text for --help, and what else `add_argument` takes."""
    return {"help": text, **keywords}


DRY_RUN = option("only say what it would read, write, and take of time and space", action="store_true")
JSON = option("print results as JSON in place of text, an object a line", action="store_true")


def add_options(
    parser: argparse.ArgumentParser, options: Mapping[str, Mapping[str, Any]], rare: Collection[str] = ()
) -> None:
    """Adds a table of options: from their names, such as `-b --batch_size`, to what `add_argument` takes.

    Args:
        parser: a `CommandParser`.
        options: the table.
        rare: names in the table whose options help shows last.
    """
    for names, keywords in options.items():
        parser.add_argument(*names.split(), **{"rare": names in rare, **keywords})


def _both_spellings(names: Sequence[str]) -> list[str]:
    """The names of a flag with _, then those with - that are others."""
    with_line = [name[:2] + name[2:].replace("-", "_") for name in names]
    hyphened = [name[:2] + name[2:].replace("_", "-") for name in names]
    return list(dict.fromkeys([*with_line, *hyphened]))


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows a flag by its letter and its first name, in at most 100 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(shutil.get_terminal_size().columns, 102) - 2)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        letters = [name for name in action.option_strings if name[1] != "-"]
        shown.option_strings = [*letters, _name_of(action)] if action.option_strings else []
        return super()._format_action_invocation(shown)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join(part if "\n " in part else textwrap.fill(part, width) for part in parts)


def _name_of(action: argparse.Action) -> str:
    """The name that help gives to an argument."""
    long = (name for name in action.option_strings if name.startswith("--"))
    return next(long, str(action.metavar or action.dest))


class CommandParser(argparse.ArgumentParser):
    """The parser of a command.

    Args:
        name: of the command, such as "export".
        description: one sentence, a paragraph `Examples:`, and what else help says after the flags.
        rules: gets the parser and each command line; reports flags that do not fit each other by `error`.
        vocabulary: from the name of a flag to what `add_argument` takes, where a call says nothing else.
        options: as of `ArgumentParser`.
    """

    def __init__(
        self,
        name: str,
        description: str | None,
        rules: Rules = lambda parser, args: None,
        vocabulary: Mapping[str, Mapping[str, Any]] | None = None,
        epilog: str = "",
        **options: Any,
    ) -> None:
        self._rules = rules
        self._vocabulary = vocabulary or {}
        self.reads_config = False  # an unknown flag may be one of its keys
        self._words: dict[str, tuple[argparse.Action, bool]] = {}  # see `positional` of `add_argument`
        self._renamed: dict[str, str] = {}  # earlier name of a flag → its name
        sentence, *others = inspect.cleandoc(description or "").split("\n\n")
        examples = [part for part in others if part.startswith("Example")]
        super().__init__(
            prog=f"{PROGRAM} {name}".rstrip(),
            usage=argparse.SUPPRESS,
            description="\n\n".join([sentence, *examples]),
            epilog="\n\n".join([*(part for part in others if part not in examples), epilog]),
            formatter_class=_Help,
            **options,
        )
        self._positionals.title, self._optionals.title = "what it needs", "what you may want"
        self._rare = self.add_argument_group("rare")

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Adds an argument.

        Args:
            names: of the argument; help shows a letter and the first of the others.
            options: as of `ArgumentParser.add_argument`; a flag of the vocabulary needs none. Of a flag also
                positional, the name of a word that may stand for it; was, its earlier names: typing one is an
                error that says the name; and rare: help shows it last.
        """
        if not names[0].startswith("-"):
            return super().add_argument(*names, **options)
        options = {"positional": "", "was": "", **self._vocabulary.get(names[0], {}), **options}
        positional, was = options.pop("positional"), options.pop("was")
        rare = options.pop("rare", False) or bool(positional)
        if positional:
            required = options.pop("required", False)
            known = {key: options[key] for key in ("type", "help") if key in options}
            super().add_argument(positional, nargs="?", **known)
            options["help"] = f"the same as {positional}"
        group = self._rare if rare else self._positionals if options.get("required") else self._optionals
        action = group.add_argument(*_both_spellings(names), **options)
        self._renamed.update(dict.fromkeys(was.split(), positional or _name_of(action)))
        if positional:
            self._words[positional] = action, required
        return action

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The command line, after its rules.

        Raises:
            UsageError: a flag is unknown, missing or has a wrong value, or flags do not fit each other.
        """
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            hint = self._hint(unknown, parsed) if unknown[0].startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        for word, (action, required) in self._words.items():
            given = parsed.__dict__.pop(word)
            if given is not None and getattr(parsed, action.dest) is not None:
                self.error(f"{word}: is given twice, as {given} and by {action.option_strings[0]}")
            if given is not None:
                setattr(parsed, action.dest, given)
            elif required and getattr(parsed, action.dest) is None:
                self.error(f"{word} is missing: {self._taken(word, parsed) or self._help_of(word)}")
        self._rules(self, parsed)
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raises a `UsageError`."""
        message = re.sub(r"^argument ((?:-\w/)?(--\w+)|-\w)[^:]*", lambda at: at[2] or at[1], message)
        missing = re.fullmatch(r"the following arguments are required: ([^,]+).*", message)
        if missing:
            names = missing[1].split("/")
            name = next((name for name in names if name.startswith("--")), names[0])
            message = f"{name} is missing: {self._help_of(name)}"
        raise UsageError(f"{message}; {self.prog} --help  shows the flags")

    def _hint(self, words: Sequence[str], args: argparse.Namespace) -> str:
        """What to type in place of an unknown flag, the first of the words; "" where nothing is like it."""
        flag = words[0][2:].partition("=")[0]
        names = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        similar = did_you_mean(flag, names).partition("; known")[0]
        module = annexes.load("advice", "flag") if self.reads_config else None
        return (module and module.hint(flag, args, words[1:])) or similar.replace("mean '", "mean '--")

    def _help_of(self, name: str) -> str:
        actions = (one for one in self._actions if name in (*one.option_strings, one.dest, one.metavar))
        return next((one.help or "" for one in actions), "")

    def _taken(self, word: str, args: argparse.Namespace) -> str:
        """What to type where a flag may have taken the missing word as its value; "" where none has."""
        for action in self._actions:
            value = getattr(args, action.dest, None)
            if action.nargs in ("?", "+") and value not in (None, [], action.const):
                flag, last = action.option_strings[-1], value[-1] if isinstance(value, list) else value
                typed = f"{self.prog} {shlex.quote(last)} {flag}"
                typed += f" {action.metavar} ..." if action.nargs == "+" else ""
                return f"{flag} took {last} as its value; write {word} before {flag}, as in  {typed}"
        return ""

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """An abbreviation of a flag with two spellings means one flag; an earlier name is an error."""
        typed = option_string.partition("=")[0]
        if name := self._renamed.get(typed[:2] + typed[2:].replace("-", "_")):
            self.error(f"{typed} is now {name}: {self._help_of(name)}")
        matches = super()._get_option_tuples(option_string)
        return list({id(one[0]): one for one in reversed(matches)}.values())
