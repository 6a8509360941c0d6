"""Where files go that are made of other files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Dict, List, Sequence

from paddlevideo_fast.errors import PaddleVideoFastError


def targets(sources: Sequence[Path], root: Path, folder: Path, ending: str) -> List[Path]:
    """A file for each source, below `folder` as the source lies below `root`: root/a/b.avi, folder/a/b.mp4.

    Sources in one folder that differ by their ending alone keep it: b.avi.mp4, b.mkv.mp4.

    Args:
        sources: files below `root`.
        root: where relative paths start.
        folder: of the results.
        ending: of their names, such as ".mp4".

    Raises:
        PaddleVideoFastError: a result would take the place of a source, or of another result.
    """
    places = [Path(os.path.relpath(source, root)) for source in sources]
    stems = Counter(place.with_suffix("") for place in places)
    made_of: Dict[Path, Path] = {}
    for source, place in zip(sources, places):
        stem = place.stem if stems[place.with_suffix("")] == 1 else place.name
        target = folder / place.parent / f"{stem}{ending}"
        if target in made_of:
            raise PaddleVideoFastError(f"{target}: would be written for both {made_of[target]} and {source}")
        made_of[target] = source
    refuse_inputs(list(made_of), sources)
    return list(made_of)


def refuse_inputs(files: Sequence[Path], sources: Sequence[Path]) -> None:
    """Checks what is going to be written.

    Raises:
        PaddleVideoFastError: a file would take the place of a source.
    """
    originals = {source.resolve() for source in sources}
    for file in files:
        if file.resolve() in originals:
            raise PaddleVideoFastError(f"{file}: is an input, which is never overwritten; give another place")
