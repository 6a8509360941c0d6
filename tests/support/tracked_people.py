"""Videos of persons who are squares with a number, and their track files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np

from tests.support.numbered_clips import draw

SIDE, SIZE, LENGTH = 48, (200, 120), 40
HEADER = "frame,time,id,x1,y1,x2,y2\n"
Row = tuple[int, int, int, int]  # frame, from 0, person, left, top


def corner(number: int, person: int = 1) -> tuple[int, int]:
    """Left and top of the picture that a person is, which moves every second frame."""
    at = number // 2 * 2
    return (2 + 3 * at, 4 + at // 2) if person == 1 else (140 - 2 * at, 72)


def write_people(path: Path, size: tuple[int, int] = SIZE, length: int = LENGTH) -> Path:
    """A grey video in which each person is a square with the number of the frame, 500 more for person 2."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv444p"
        stream.options = {"crf": "10", "g": "10"}
        for number in range(length):
            frame = np.full((size[1], size[0], 3), 128, np.uint8)
            for person in (2, 1):
                left, top = corner(number, person)
                frame[top : top + SIDE, left : left + SIDE] = draw(number + 500 * (person - 1), SIDE, SIDE)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
    return path


def rows_of(frames: Iterable[int], person: int = 1) -> list[Row]:
    """A row for each frame."""
    return [(number, person, *corner(number, person)) for number in frames]


def ultralytics(rows: Iterable[Row]) -> str:
    """A track file with a header."""
    lines = (f"{n},{n / 25:.3f},{person},{x},{y},{x + SIDE},{y + SIDE}\n" for n, person, x, y in rows)
    return HEADER + "".join(lines)


def mot(rows: Iterable[Row]) -> str:
    """A track file as of MOTChallenge."""
    return "".join(f"{n + 1},{person},{x}.0,{y}.0,{SIDE},{SIDE},0.9,-1,-1,-1\n" for n, person, x, y in rows)
