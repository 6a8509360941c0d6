"""Writes the lists of Something-Something V2 from its JSON files and the videos that are there.

Reads labels.json, train.json and validation.json, or something-something-v2-labels.json and so on. The test
split has no labels and is left out. Videos are `<id>.webm`, in any folder of --videos up to three deep.

Writes, to --output:
    train.list, val.list                 lines `path label`, or
    train_frames.list, val_frames.list   lines `folder num_frames label`; both relative to the folder of clips
    <list>_missing.txt                   what is not on the disk
    class_names.txt                      the classes in the order of the numbers in labels.json

Example:
    python data/ssv2/build_lists.py --videos data/ssv2/videos --annotations data/ssv2/annotations
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, List, Optional, Sequence

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _annotated import Row, find_all, label, make_parser, one_of, read_text, write_lists
from _common import ScriptError, run_main
from _lists import by_name


def read_json(file: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ScriptError: it is not there, or no JSON.
    """
    try:
        return json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ScriptError(f"{file}:{error.lineno}: is no valid JSON: {error.msg}") from None


def read_classes(file: Path) -> List[str]:
    """The class names, in the order of their numbers.

    Raises:
        ScriptError: the file does not number its classes from 0.
    """
    numbers = read_json(file)
    try:
        names = sorted(numbers, key=lambda name: int(numbers[name]))
        well_numbered = [int(numbers[name]) for name in names] == list(range(len(names)))
    except (TypeError, ValueError, LookupError):
        well_numbered = False
    if not well_numbered or not names:
        raise ScriptError(f"{file}: expected an object of class names with the numbers 0, 1, 2 …")
    return names


def read_rows(file: Path) -> List[Row]:
    """The clips of a split; the class is the template without its brackets.

    Raises:
        ScriptError: an entry lacks id or template.
    """
    entries = read_json(file)
    if not isinstance(entries, list):
        raise ScriptError(f"{file}: expected a list of objects with 'id' and 'template'")
    rows = []
    for number, entry in enumerate(entries, 1):
        where = f"{file}: entry {number}"
        try:
            class_name = entry["template"].replace("[", "").replace("]", "")
            rows.append(Row(where, str(entry["id"]), class_name))
        except (TypeError, KeyError, AttributeError):
            raise ScriptError(f"{where}: expected an object with 'id' and 'template'") from None
    return rows


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = make_parser(__doc__, "data/ssv2").parse_args(argv)
    index, train, val = (
        one_of(args.annotations, f"something-something-v2-{name}.json", f"{name}.json")
        for name in ("labels", "train", "validation")
    )
    names = read_classes(index)
    labels = label({file: read_rows(file) for file in (train, val)}, names, index)
    clips = find_all(args)
    kind = "_frames" if args.frames else ""
    found = by_name(clips, lambda clip: clip.name)
    lists = {f"train{kind}.list": labels[0], f"val{kind}.list": labels[1]}
    write_lists(args, names, lists, clips, found.get, relative=True)
    return 0


if __name__ == "__main__":
    run_main(main)
