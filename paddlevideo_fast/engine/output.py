"""The output folder: an earlier run's files are never overwritten by a new one."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Iterator, Optional, Sequence, Union

from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_RUN_FILES = ("metrics.jsonl", "train.log", "config.yaml", "bad_samples.txt", "vdl", "report.html", "test")


def move_earlier_run_aside(folder: Path, name: str) -> None:
    """Moves the files of an earlier run of this name to `folder/earlier-<n>/`; other files stay.

    Raises:
        CheckpointError: they cannot be moved.
    """
    pattern = re.compile(
        re.escape(name) + r"_((epoch|step)_\d+|best)\.(pdparams|pdopt|pdstates|json)"
    )  # not a glob: another model's name may begin with this one's
    found = [folder / file for file in _RUN_FILES if (folder / file).exists()]
    found += [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    target = move_aside(folder, found)
    if target is not None:
        logger.info(
            "'%s' held an earlier run: moved to '%s' (-o resume=auto goes on with a run)", folder, target
        )


def move_aside(folder: Path, paths: Sequence[Path]) -> Optional[Path]:
    """Moves files to a new `folder/earlier-<n>/`, which is returned; None where there is nothing to move.

    Raises:
        CheckpointError: they cannot be moved.
    """
    if not paths:
        return None
    number = 1
    while (target := folder / f"earlier-{number}").exists():
        number += 1
    with writing(folder):
        target.mkdir()
        for path in paths:
            path.rename(target / path.name)
    return target


@contextlib.contextmanager
def writing(path: Union[str, Path]) -> Iterator[None]:
    """Turns what goes wrong while `path` is written into an error that a user can act on.

    Raises:
        CheckpointError: names the file and the cause (disk full, say).
    """
    try:
        yield
    except OSError as exc:
        raise CheckpointError(
            f"'{exc.filename or path}' cannot be written: {exc.strerror or exc}; earlier checkpoints are "
            "whole. Make room, or choose another folder with -o output_dir=..., and go on with -o resume=auto"
        ) from exc
