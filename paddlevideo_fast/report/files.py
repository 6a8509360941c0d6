"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Iterator, Mapping

from paddlevideo_fast.errors import PaddleVideoFastError


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write, which takes its place when it is complete.

    Raises:
        PaddleVideoFastError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise PaddleVideoFastError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # the folder itself may be what cannot be written
            partial.unlink()


def save_json(result: Mapping[str, Any], path: Path) -> None:
    """Writes `result`.

    Raises:
        PaddleVideoFastError: it cannot be written.
    """
    with whole(path) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
