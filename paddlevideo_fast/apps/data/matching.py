"""Which of many fingerprints belong to copies of each other, and where the copies fit together.

`candidates` looks for pairs of videos with a pair of similar hashes, in a few sorts and without comparing all
with all. `align` compares the two videos of a pair at every offset in time. `matches` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from paddlevideo_fast.apps.data.fingerprints import RATE, Prints

_NUM_TABLES = 9  # about: a multiple of the number of parts
_NUM_NEIGHBOURS = 16  # in a sorted table
_MAX_DISTANCE = 12  # bits between two hashes of a candidate
_MAX_LOOK, _MAX_STILL_LOOK, _MAX_MOTION = 18, 6, 14  # bits between pictures that match
_MIN_SHARE = 0.65  # of the pictures that two videos have at one time
_MIN_OVERLAP = 0.5  # of the shorter video
_MIN_PICTURES = 8  # where the shorter video has so many
_MAX_CELLS = 2**23  # pairs of pictures that are compared for a pair of videos
_MAX_BLOCK = 2**20  # at once
_MAX_GROUP = 300  # videos of which all pairs are aligned

_NUM_BITS = np.array([bin(number).count("1") for number in range(2**16)], np.uint8)


class Match(NamedTuple):
    """How two videos fit together.

    Attributes:
        offset_sec: where in the first video the second one begins; negative: before it.
        length_sec: how long both show the same.
        is_mirrored: the second one is mirrored.
    """

    offset_sec: float
    length_sec: float
    is_mirrored: bool

    def reversed(self) -> Match:
        """How the second video and the first one fit together."""
        return self._replace(offset_sec=-self.offset_sec)


Pairs = Mapping[tuple[int, int], Match]  # by the numbers of two videos, the lower one first


def matches(videos: Sequence[Prints], is_wanted: Callable[[int, int], bool]) -> Pairs:
    """Finds the pairs of copies.

    The index need not find each pair of a group, so the pairs of a group that it has left out are aligned,
    too; in groups of more than 300 videos they are not.

    Args:
        videos: fingerprints.
        is_wanted: whether a pair, the lower number first, is asked for.
    """
    tried: dict[tuple[int, int], Match | None] = {}

    def add(pairs: Iterable[tuple[int, int]]) -> Pairs:
        for one, other in pairs:
            if (one, other) not in tried and is_wanted(one, other):
                tried[one, other] = align(videos[one], videos[other])
        return {pair: match for pair, match in sorted(tried.items()) if match}

    copies = add((one, other) for one, other in candidates(videos).tolist())
    small = [group for group in groups(copies) if len(group) <= _MAX_GROUP]
    return add(pair for group in small for pair in combinations(group, 2))


def groups(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The numbers that pairs connect, directly or through others: ascending lists, in order."""
    group_of: dict[int, list[int]] = {}
    for one, other in pairs:
        first, second = (group_of.setdefault(number, [number]) for number in (one, other))
        if first is not second:
            small, large = sorted((first, second), key=len)
            large += small
            group_of.update(dict.fromkeys(small, large))
    return sorted(map(sorted, {id(group): group for group in group_of.values()}.values()))


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Bits that differ between hashes, uint64 of any shapes that broadcast."""
    differing = np.ascontiguousarray(one ^ other)
    return _NUM_BITS[differing.view(np.uint16).reshape(*differing.shape, 4)].sum(-1, dtype=np.uint8)


def candidates(videos: Sequence[Prints], seed: int = 0) -> np.ndarray:
    """Pairs of videos with similar hashes, also mirrored ones: int64 [P, 2], lower number first, each once.

    The bits of the hashes are shuffled and cut into parts. For each part the hashes are sorted with the
    part in front, and each hash is compared with the next ones that have the same part. Hashes that differ
    in fewer bits than there are parts have an equal part, so they lie together in one of the tables. A
    picture that thousands of videos have in common has as many neighbours as any other, so it costs no
    more.

    Reference:
        M. Norouzi, A. Punjani, D. J. Fleet, "Fast search in Hamming space with multi-index hashing",
        CVPR 2012: parts of which one is equal.
    """
    hashes, owners = _index_entries(videos)
    num_parts = 4 if len(hashes) < 2**18 else 3
    rng, pairs = np.random.default_rng(seed), np.empty(0, np.int64)
    for _ in range(-(-_NUM_TABLES // num_parts)):
        shuffled = _shuffled(hashes, rng.permutation(64))
        for part in range(num_parts):
            turn = np.uint64(64 * part // num_parts)
            turned = shuffled if part == 0 else (shuffled << turn) | (shuffled >> (np.uint64(64) - turn))
            pairs = np.union1d(pairs, _neighbours(turned, owners, np.uint64(64 - 64 // num_parts)))
    return np.stack([pairs >> 32, pairs & 0xFFFFFFFF], axis=1)


def _index_entries(videos: Sequence[Prints]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes, also mirrored, and the numbers of their videos; of equal hashes in a row the first."""
    hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for number, video in enumerate(videos):
        for side in (video, video.mirrored()):
            own = side.frame_hashes[:: RATE // 4]
            own = own[(own != 0) & (np.r_[np.uint64(0), own[:-1]] != own)]
            hashes.append(own)
            owners.append(np.full(len(own), number))
    return np.concatenate(hashes), np.concatenate(owners)


def _shuffled(hashes: np.ndarray, order: np.ndarray) -> np.ndarray:
    shuffled = np.zeros_like(hashes)
    for target, source in enumerate(order.tolist()):
        shuffled |= ((hashes >> np.uint64(source)) & np.uint64(1)) << np.uint64(target)
    return shuffled


def _neighbours(hashes: np.ndarray, owners: np.ndarray, shift: np.uint64) -> np.ndarray:
    """Pairs of videos, one << 32 | other, whose hashes are equal above `shift` bits and similar below."""
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], owners[order]
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
    hashes, owners = hashes[is_first], owners[is_first]
    parts, pairs = hashes >> shift, [np.empty(0, np.int64)]
    for step in range(1, _NUM_NEIGHBOURS + 1):
        firsts = np.flatnonzero(parts[step:] == parts[:-step])
        one, other = owners[firsts], owners[firsts + step]
        is_pair = (one != other) & (distance(hashes[firsts], hashes[firsts + step]) <= _MAX_DISTANCE)
        one, other = one[is_pair], other[is_pair]
        pairs.append(np.unique(np.minimum(one, other) << 32 | np.maximum(one, other)))
    return np.unique(np.concatenate(pairs))


def align(one: Prints, other: Prints) -> Match | None:
    """The offset at which most pictures of two videos match; None where there are too few.

    At an offset, the videos have to overlap by half of the shorter one and, if it is longer, by a second, and
    65 % of the pictures that they have at the same time have to match. Black and flat pictures do not count.
    Of the second of two long videos, only each n-th picture is compared.
    """
    best: tuple[int, Match] | None = None
    shorter = int(min(np.count_nonzero(one.frame_hashes), np.count_nonzero(other.frame_hashes)))
    step = max(len(one.frame_hashes) * len(other.frame_hashes) // _MAX_CELLS, 1)
    least = max(_MIN_OVERLAP * shorter, min(_MIN_PICTURES, shorter), 1) / step
    is_compared = np.arange(len(other.frame_hashes)) % step == 0
    other = other._replace(frame_hashes=np.where(is_compared, other.frame_hashes, np.uint64(0)))
    for is_mirrored, second in ((False, other), (True, other.mirrored())):
        matched = _num_matched(one, second)
        if matched.max() < max(_MIN_SHARE * least, best[0] + 1 if best else 0):
            continue
        compared = np.convolve(one.frame_hashes != 0, (second.frame_hashes != 0)[::-1].astype(np.int64))
        is_copy = (compared >= least) & (matched >= _MIN_SHARE * compared)
        most = int(np.where(is_copy, matched, -1).argmax())
        if is_copy[most] and (best is None or matched[most] > best[0]):
            offset = most - (len(second.frame_hashes) - 1)
            length = min(len(one.frame_hashes), offset + len(second.frame_hashes)) - max(offset, 0)
            best = int(matched[most]), Match(offset / RATE, length / RATE, is_mirrored)
    return best and best[1]


def _num_matched(one: Prints, other: Prints) -> np.ndarray:
    """How many pictures match at each offset: int64 [N + M - 1].

    Place 0 has the last picture of `other` at the first of `one`.
    """
    last, shown = len(other.frame_hashes) - 1, np.flatnonzero(other.frame_hashes)
    matched = np.zeros(len(one.frame_hashes) + last, np.int64)
    signs, other_signs = _signs(one.frame_hashes), _signs(other.frame_hashes[shown])
    block = max(_MAX_BLOCK // max(len(shown), 1), 1)
    for first in range(0, len(signs), block):
        likeness = signs[first : first + block] @ other_signs.T
        rows, columns = np.nonzero(likeness >= 64 - 2 * _MAX_LOOK)
        is_still = likeness[rows, columns] >= 64 - 2 * _MAX_STILL_LOOK
        rows, columns = rows + first, shown[columns]
        motions, other_motions = one.motion_hashes[rows], other.motion_hashes[columns]
        moves, other_moves = motions != 0, other_motions != 0
        is_moved = distance(motions, other_motions) <= _MAX_MOTION
        is_same = np.where(moves & other_moves, is_moved, is_still & (moves == other_moves))
        matched += np.bincount((rows - columns)[is_same] + last, minlength=len(matched))
    return matched


def _signs(hashes: np.ndarray) -> np.ndarray:
    """The bits of hashes as 1 and -1: a product of two is 64 less twice their distance. 0: flat."""
    bits = np.unpackbits(hashes.view(np.uint8)).reshape(-1, 64).astype(np.float32)
    return (2 * bits - 1) * (hashes != 0)[:, None]
