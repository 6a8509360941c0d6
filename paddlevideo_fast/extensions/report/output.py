"""Where reports and predictions are written: whole files, and never over an input."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io import files
from paddlevideo_fast.io.urls import bare_url


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """`files.atomic_write`, with an error that names the file.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    try:
        with files.atomic_write(path) as partial:
            yield partial
    except OSError as error:
        raise PaddleVideoFastError(f"{path}: cannot be written: {error.strerror or error}") from error


def save_json(result: Mapping[str, Any], path: Path) -> None:
    """Writes a JSON file.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def make_folders(paths: Iterable[Path]) -> None:
    """Makes the folders of files, so that a long run does not end in vain.

    Raises:
        PaddleVideoFastError: a folder cannot be made, or not be written to.
    """
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PaddleVideoFastError(f"{folder}: cannot be made: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK):
            raise PaddleVideoFastError(f"{folder}: no permission to write there")


def targets(sources: Sequence[Path], root: Path, folder: Path, ending: str) -> list[Path]:
    """The result file of each source. It lies below `folder` as the source lies below `root`.

    root/a/b.avi gives folder/a/b.mp4.

    Sources in one folder that differ by their ending alone keep it: b.avi.mp4, b.mkv.mp4.

    Args:
        sources: files below `root`.
        root: where relative paths start.
        folder: folder of the results.
        ending: ending of their names, such as ".mp4".

    Raises:
        PaddleVideoFastError: a result would take the place of a source, or of another result.
    """
    places = [Path(os.path.relpath(bare_url(str(source)), root)) for source in sources]
    stems = Counter(place.with_suffix("") for place in places)
    made_of: dict[Path, Path] = {}
    for source, place in zip(sources, places):
        stem = place.stem if stems[place.with_suffix("")] == 1 else place.name
        target = folder / place.parent / f"{stem}{ending}"
        if target in made_of:
            raise PaddleVideoFastError(f"{target}: would be written for both {made_of[target]} and {source}")
        made_of[target] = source
    refuse_inputs(list(made_of), sources)
    return list(made_of)


def refuse_inputs(results: Sequence[Path], sources: Sequence[Path]) -> None:
    """Checks the files that are going to be written.

    Raises:
        PaddleVideoFastError: a file would take the place of a source.
    """
    originals = {source.resolve() for source in sources if isinstance(source, Path)}
    for file in results:
        if file.resolve() in originals:
            raise PaddleVideoFastError(f"{file}: is an input, which is never overwritten; give another place")
