"""Flags of other toolkits that are keys of a config here."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence

from paddlevideo_fast.cli.command import quiet_import
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.sections import ROOT, holders
from paddlevideo_fast.errors import ConfigError

# how schedules of the learning rate and kinds of weight decay call the number in them
_NUMBERS = ("learning_rate", "values", "cosine_base_lr", "step_base_lr", "base_lr", "value")


def hint(flag: str, args: argparse.Namespace, words: Sequence[str] = ()) -> str:
    """What to type in place of an unknown flag whose name is a key of the config; "" where it is none.

    Args:
        flag: its name.
        args: the rest of the command line, with CONFIG and -o.
        words: behind the flag; one may be the CONFIG, and the value of the flag in its place.
    """
    name = flag.replace("-", "_")
    with quiet_import():  # to know all keys takes Paddle
        key = next(holders(ROOT, name, None), None)
    if key is None:
        return ""
    for config in filter(None, (args.config, args.CONFIG, *words)):
        with contextlib.suppress(ConfigError):
            value = load_config(config, args.override, check=False).at(key)
            inside = [number for number in _NUMBERS if isinstance(value, Mapping) and number in value]
            key = ".".join([key, *inside[:1]])  # a number in place of the section would replace all of it
            break
    return f"; it is a key of the config: -o {key}=VALUE  sets it"
