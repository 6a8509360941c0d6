"""The lists of a data set and how its config reads them, so that the data tools need no flags for it."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.jobs.run import ToolError


def of_sets(args: argparse.Namespace, *single: str) -> list[argparse.Namespace]:
    """A command line for each list that --list means, with what the config.yaml beside it says of the list.

    A folder with a config.yaml, such as `init` makes, means the lists that the config names. The config
    also gives --data_prefix, --suffix, --class_names and --kind, where the command line does not.

    Args:
        args: the command line of a tool.
        single: flags that are for one list alone.

    Raises:
        ConfigError: the config of a folder is wrong.
        ToolError: a folder's config names no list, or several with one of the flags `single`.
    """
    given: Path = args.list
    is_folder = given.is_dir()
    config = (given if is_folder else given.parent) / CONFIG_FILE
    if not isinstance(given, Path) or not config.is_file():
        return [args]
    try:
        data: Any = load_config(config, check=False).get("DATASET")
    except ConfigError:
        if is_folder:
            raise
        return [args]  # it may be about something else
    sections = [data.get(part) for part in ("train", "valid", "test")] if isinstance(data, dict) else []
    lists = {
        os.path.realpath(section["file_path"]): section
        for section in reversed(sections)
        if isinstance(section, dict) and os.path.isfile(section.get("file_path") or "")
    }
    if not is_folder:
        section = lists.get(os.path.realpath(given))
        return [_as_config(args, given, data, section, config)] if section else [args]
    files = [given / os.path.relpath(file, os.path.realpath(given)) for file in reversed(lists)]
    if not files:
        raise ToolError(f"{given}: its {CONFIG_FILE} names no list that is there")
    for flag in (flag for flag in single if len(files) > 1 and getattr(args, flag)):
        what = "this command" if flag == "list" else f"--{flag}"
        raise ToolError(f"{given}: {what} is for one list; name {' or '.join(map(str, files))}")
    return [
        _as_config(args, file, data, section, config)
        for file, section in zip(files, reversed(lists.values()))
    ]


def _as_config(args: argparse.Namespace, file: Path, data: Any, section: Any, config: Path) -> Any:
    """The command line, completed by a config's section of DATASET; a line on stderr names what it took."""
    one = argparse.Namespace(**{**vars(args), "list": file})
    if "Frame" in str(section.get("format")) and getattr(args, "kind", "") == "video":
        one.kind = "frames"
    texts = {"data_prefix": section.get("data_prefix"), "suffix": section.get("suffix")}
    texts["class_names"] = data.get("class_names")
    said = {flag: text for flag, text in texts.items() if text and not getattr(args, flag)}
    for flag, text in said.items():
        setattr(one, flag, text if flag == "suffix" else as_path(text))
    if "data_prefix" in said and isinstance(one.data_prefix, Path) and not one.data_prefix.is_dir():
        raise ToolError(f"{config}: data_prefix {one.data_prefix}: no such folder")
    flags = "".join(f" --{flag} {text}" for flag, text in said.items())
    print(f"{file}, as {config} has it:{flags or ' nothing more'}", file=sys.stderr)
    return one
