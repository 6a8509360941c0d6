"""Whether videos that fit together by their fingerprints are copies: what moves in them has to be the same.

People who do the same before one wall share the look, and often the signs of the motion. So each pair is
looked at again, in small pictures: in a copy every part of the picture changes as in the original, also
beside a logo, while other people move at other times, in other clothes, or are of another size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.apps.data.fingerprints import RATE, Video, times_of
from paddlevideo_fast.apps.data.matching import Match, Pairs, groups
from paddlevideo_fast.errors import VideoDecodeError

_SIDE = 32  # pixels of a picture
_MAX_SEC = 8.0  # of a pair, from its middle
_LAGS_SEC = np.linspace(-0.25, 0.25, 26)  # a match knows its offset to 1 / RATE
_MOVES = 3.5  # levels, standard deviation over time of a pixel that moves; an encoder's noise has less
_MIN_MOVING = 6  # pixels; with fewer, both stand still
_ALIKE = 0.65  # correlation of what moves
_DIFFERS, _MAX_DIFFERING = 12.0, 3  # levels, and pixels, of pictures that stand still


class Part(NamedTuple):
    """A video, or the part of it from a time on that a list names; times in seconds."""

    video: Video
    start_sec: float
    length_sec: float


class Pair(NamedTuple):
    """The places of two parts in a group, and how they fit together."""

    one: int
    other: int
    match: Match


Group = tuple[Sequence[Part], Sequence[Pair]]


def groups_of(parts: Sequence[Part], alike: Pairs) -> tuple[list[list[int]], list[Group]]:
    """Groups of parts that pairs connect: their numbers, and what `confirm` takes of each."""
    members = groups(alike)
    group_of = {number: group for group, numbers in enumerate(members) for number in numbers}
    of_group: list[list[Pair]] = [[] for _ in members]
    for (one, other), match in alike.items():
        numbers = members[group_of[one]]
        of_group[group_of[one]].append(Pair(numbers.index(one), numbers.index(other), match))
    return members, [
        ([parts[number] for number in numbers], pairs) for numbers, pairs in zip(members, of_group)
    ]


def confirmed(
    members: Iterable[Sequence[int]], tasks: Iterable[Group], answers: Iterable[list[bool]]
) -> Pairs:
    """The pairs of `groups_of` that are copies, in order.

    Args:
        members: of `groups_of`, like the tasks.
        tasks: see there.
        answers: what `confirm` says of each task.
    """
    pairs = {
        (numbers[pair.one], numbers[pair.other]): pair.match
        for numbers, (_, of_group), flags in zip(members, tasks, answers)
        for pair, is_same in zip(of_group, flags)
        if is_same
    }
    return dict(sorted(pairs.items()))


def confirm(group: Group) -> list[bool]:
    """Whether what moves is the same, for each pair; True where a video cannot be read again."""
    parts, pairs = group
    cached = lru_cache(64)(_pictures)
    verdicts = []
    for one, other, match in pairs:
        first, second = parts[one], parts[other]
        start = max(match.offset_sec, 0.0)
        stop = min(first.length_sec, match.offset_sec + second.length_sec)
        middle = (start + stop) / 2
        start, stop = max(start, middle - _MAX_SEC / 2), min(stop, middle + _MAX_SEC / 2)
        try:
            seen = cached(first, start, stop)
            slack = float(_LAGS_SEC[-1])
            again = cached(second, start - match.offset_sec - slack, stop - match.offset_sec + slack)
        except VideoDecodeError:
            verdicts.append(True)
            continue
        pictures = again[1][:, :, ::-1] if match.is_mirrored else again[1]
        times = np.arange(start, max(stop - 0.5 / RATE, start + 1e-6), 1 / RATE)
        verdicts.append(_is_same(_at(*seen, times), (again[0], pictures), times - match.offset_sec))
    return verdicts


def _pictures(part: Part, start_sec: float, stop_sec: float) -> tuple[np.ndarray, np.ndarray]:
    """Times from the part's beginning, float64 [N], and pictures, uint8 [N, 32, 32, 3], of its frames."""
    with part.video.open() as reader:
        times = times_of(reader) - part.start_sec
        first = max(int(np.searchsorted(times, start_sec + 1e-4, side="right")) - 1, 0)
        frames = range(first, max(int(np.searchsorted(times, stop_sec)), first + 1))
        pictures = np.empty((len(frames), _SIDE, _SIDE, 3), np.uint8)
        for frame, picture in reader.frames(list(frames)):
            pictures[frame - first] = cv2.resize(picture, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    return times[frames.start : frames.stop], pictures


def _at(times: np.ndarray, pictures: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The pictures on display at times, float32 [N, 32, 32, 3]."""
    shown = np.searchsorted(times, wanted + 1e-4, side="right") - 1
    return pictures[np.maximum(shown, 0)].astype(np.float32)


def _is_same(seen: np.ndarray, again: tuple[np.ndarray, np.ndarray], times: np.ndarray) -> bool:
    """Whether pictures [N, 32, 32, 3] change as the other video changes at about the same times."""
    mine, best = seen - seen.mean(0), -1.0
    for lag in _LAGS_SEC:
        others = _at(*again, times + lag)
        theirs = others - others.mean(0)
        moves = np.maximum(mine.std(0).max(-1), theirs.std(0).max(-1)) > _MOVES
        if np.count_nonzero(moves) < _MIN_MOVING:
            return _look_same(seen.mean(0), others.mean(0))
        ours, other = mine[:, moves], theirs[:, moves]
        best = max(best, float((ours * other).sum() / np.sqrt((ours**2).sum() * (other**2).sum() + 1e-9)))
    return best >= _ALIKE


def _look_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two pictures, float32 [32, 32, 3], differ hardly anywhere but in brightness and contrast."""
    scaled = (other - other.mean()) * (one.std() / max(float(other.std()), 1e-3))
    differs = np.abs(one - one.mean() - scaled).max(-1) > _DIFFERS
    return bool(np.count_nonzero(differs) <= _MAX_DIFFERING)
