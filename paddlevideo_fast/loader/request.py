"""Requests for clips, and random generators that depend on nothing but their key."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlevideo_fast.errors import TransformError


@dataclass(frozen=True)
class ClipRequest:
    """One clip of one record. The shape travels with the request, so datasets and workers keep no state.

    Requests of one batch for the same draw of a record are read together, in one pass over its file.

    Attributes:
        index: number of the record in the dataset.
        epoch: the epoch the clip is for; part of the key of its randomness.
        view: which of several clips of the record: of multi-view evaluation, or of `clips_per_video`.
        num_views: how many those are.
        num_frames: frames of the clip; None: as configured for the sampler.
        sampling_rate: source frames from one clip frame to the next, at most: a random clip draws a rate
            between the sampler's own and this one; None: as configured for the sampler.
        crop_size: height and width of the clip in pixels; None: as configured for the transforms.
        draw: how often the epoch took the record before, where it may take a record more than once.
    """

    index: int
    epoch: int
    view: int = 0
    num_views: int = 1
    num_frames: int | None = None
    sampling_rate: float | None = None
    crop_size: int | None = None
    draw: int = 0

    @property
    def key(self) -> tuple[int, ...]:
        """What the randomness of the clip depends on, beside the seed."""
        return (self.epoch, self.index, self.view, *([self.draw] if self.draw else []))


def group_by_video(requests: Iterable[ClipRequest]) -> list[list[int]]:
    """Groups positions of requests by video: one pass over a file serves a group.

    A group has requests for one draw of one record, each view once.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    seen: Counter[ClipRequest] = Counter()
    for position, request in enumerate(requests):
        seen[request] += 1
        groups.setdefault((request.index, request.draw, seen[request]), []).append(position)
    return list(groups.values())


CLIP, ORDER, SUBSTITUTE, DRAW, PART = 1, 2, 3, 4, 5


def generator(purpose: int, *key: int) -> np.random.Generator:
    """A generator that is a pure function of its key.

    Args:
        purpose: one of `CLIP` (what happens to a sample), `ORDER` (the shuffle of an epoch), `SUBSTITUTE`
            (which record replaces one that does not decode), `DRAW` (which records an epoch has twice) and
            `PART` (which part of a video a record is about).
        key: integers ≥ 0, such as (seed, epoch, index, view).
    """
    # numpy pads short keys with zeros, so (1, 2) and (1, 2, 0) would be one stream: the length goes in, too
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((purpose, len(key), *key))))


def _filled(value: Any, size: Any) -> Any:
    return value if size is None else np.full(size, value)


class MidpointGenerator(np.random.Generator):
    """Draws the middle of what could be drawn: random crops become centre crops, and nothing flips.

    Evaluation uses it, so that its clips are those a random draw has on average, the same in each epoch.
    """

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def integers(self, low: Any, high: Any = None, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The middle of the range, the lower of two."""
        first, stop = (0, low) if high is None else (low, high)
        return _filled((first + stop - 1) // 2, size)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """The middle of the range."""
        return _filled((low + high) / 2, size)

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The largest number below 1: what happens with a probability below 1 does not happen."""
        return _filled(float(np.nextafter(1.0, 0.0)), size)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """The order as it is."""
        return np.arange(x) if isinstance(x, (int, np.integer)) else np.array(x)

    def __getattribute__(self, name: str) -> Any:
        """Refuses the other draws of a generator, which would give the same noise for every clip.

        Raises:
            TransformError: the method draws from a distribution that has no middle here.
        """
        if not name.startswith("_") and name not in MidpointGenerator.__dict__:
            raise TransformError(
                f"a transform draws by `{name}` in an evaluation, where nothing is random: leave it out of "
                "this pipeline, or draw by integers, uniform, random or permutation: they give the middle"
            )
        return super().__getattribute__(name)
