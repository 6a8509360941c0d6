"""What a tool found, in a folder: JSON and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping

from paddlevideo_fast.report import save_json

Draw = Callable[[Mapping[str, Any], Path], None]


def save(result: Mapping[str, Any], folder: Path, name: str, draw: Draw) -> None:
    """Writes `name`.json and `name`.png into `folder`.

    Raises:
        PaddleVideoFastError: a file cannot be written.
    """
    save_json(result, folder / f"{name}.json")
    draw(result, folder / f"{name}.png")
