"""The output folder: an earlier run's files are never overwritten by a new one."""

from __future__ import annotations

from pathlib import Path
from typing import List

from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_RUN_FILES = ("metrics.jsonl", "train.log", "config.yaml", "bad_samples.txt", "vdl")


def move_earlier_run_aside(folder: Path, name: str) -> None:
    """Moves the files of an earlier run of this name to `folder/earlier-<n>/`; other files stay.

    Raises:
        CheckpointError: they cannot be moved.
    """
    found: List[Path] = [folder / file for file in _RUN_FILES if (folder / file).exists()]
    for ending in ("pdparams", "pdopt", "pdstates", "json"):
        found += folder.glob(f"{name}_*.{ending}")
    if not found:
        return
    number = 1
    while (target := folder / f"earlier-{number}").exists():
        number += 1
    try:
        target.mkdir()
        for path in found:
            path.rename(target / path.name)
    except OSError as exc:
        raise CheckpointError(
            f"'{folder}' holds an earlier run that cannot be moved aside: {exc.strerror or exc}; "
            "choose another folder with -o output_dir=..."
        ) from exc
    logger.info("'%s' held an earlier run: moved to '%s' (-o resume=auto goes on with a run)", folder, target)
