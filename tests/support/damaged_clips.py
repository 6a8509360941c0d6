"""Numbered clips with a range of bytes zeroed, cut out, doubled or swapped, as disks and copies do it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.exact_corpus import OPEN_GOP
from tests.support.numbered_clips import packets_of, write_clip

DAMAGES = ("zeroed", "cut", "doubled", "swapped")
NUM_FRAMES = 120

_SMALL_CLUSTERS = {"cluster_time_limit": "300"}
_LIVE = {"live": "1", "cluster_time_limit": "300"}
_FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
_FAST_START = {"movflags": "faststart"}
_VP9 = {"codec": "libvpx-vp9", "options": {"lag-in-frames": "0"}}
_MJPEG = {"codec": "mjpeg", "pix_fmt": "yuvj420p"}
_X265 = {"x265-params": "log-level=error:bframes=3:b-adapt=0:open-gop=0"}

# file name -> arguments of `write_clip`
_WRITTEN: dict[str, dict[str, Any]] = {
    "h264.mp4": {"bframes": 2},
    "h264_fast_start.mp4": {"bframes": 2, "container_options": _FAST_START},
    "h264_fragments.mp4": {"bframes": 2, "container_options": _FRAGMENTS},
    "h264_audio.mp4": {"bframes": 2, "audio": 4.8},
    "h264.mov": {"bframes": 2},
    "h264.mkv": {"bframes": 2},
    "h264_open_gop.mkv": {"bframes": 3, "options": OPEN_GOP},
    "h264_small_clusters.mkv": {"bframes": 2, "container_options": _SMALL_CLUSTERS},
    "h264_live.mkv": {"bframes": 2, "container_options": _LIVE},
    "h264_audio.mkv": {"bframes": 2, "audio": 4.8},
    "h264_variable_rate.mkv": {"bframes": 2, "variable_rate": True},
    "h264_gop_60.mkv": {"bframes": 2, "gop": 60},
    "h264.ts": {"bframes": 2},
    "h264_audio.ts": {"bframes": 2, "audio": 4.8},
    "h264.flv": {"bframes": 2},
    "h264.avi": {"bframes": 2},
    "hevc.mp4": {"codec": "libx265", "options": _X265},
    "hevc.mkv": {"codec": "libx265", "options": _X265},
    "hevc.ts": {"codec": "libx265", "options": _X265},
    "vp8.webm": {"codec": "libvpx"},
    "vp9.webm": _VP9,
    "vp9_live.webm": {**_VP9, "container_options": _LIVE},
    "vp9_small_clusters.webm": {**_VP9, "container_options": _SMALL_CLUSTERS},
    "vp9.mp4": _VP9,
    "mpeg4.avi": {"codec": "mpeg4"},
    "mpeg4_b_frames.avi": {"codec": "mpeg4", "bframes": 2},
    "mpeg4_audio.avi": {"codec": "mpeg4", "audio": 4.8},
    "mpeg4.mp4": {"codec": "mpeg4", "bframes": 2},
    "mpeg4.mkv": {"codec": "mpeg4", "bframes": 2},
    "mpeg2.mpg": {"codec": "mpeg2video", "bframes": 2},
    "mpeg2.ts": {"codec": "mpeg2video", "bframes": 2},
    "mjpeg.avi": _MJPEG,
    "mjpeg.mov": _MJPEG,
    "mjpeg.mkv": _MJPEG,
}
SOURCES: tuple[str, ...] = tuple(_WRITTEN)


class Damage(NamedTuple):
    """What happened to a file.

    Attributes:
        source: name of the intact file, one of `SOURCES`.
        kind: one of `DAMAGES`.
        first: the first byte of the range.
        num_bytes: its length.
        aligned: to what the range was aligned: "bytes", "sectors" of 512 bytes, or "packets" of the video.
    """

    source: str
    kind: str
    first: int
    num_bytes: int
    aligned: str


def write_sources(folder: Path, names: Sequence[str] = SOURCES) -> None:
    """Writes intact files, each with `NUM_FRAMES` frames; frame i carries the number i."""
    for name in names:
        write_clip(folder / name, **{"num_frames": NUM_FRAMES, "size": (160, 96), **_WRITTEN[name]})


def damaged(folder: Path, seed: int, names: Sequence[str] = SOURCES) -> tuple[Damage, bytes]:
    """A damage that is a function of `seed`, and the bytes of the file that has it.

    Seeds take turns: each of the files `names` in `folder` gets one kind of damage, then the next kind.
    """
    rng = np.random.default_rng(seed)
    name = names[seed % len(names)]
    kind = DAMAGES[seed // len(names) % len(DAMAGES)]
    data = (folder / name).read_bytes()
    aligned = ("bytes", "sectors", "packets")[int(rng.integers(3))]
    first, stop = _range(folder / name, len(data), rng, aligned)
    before, part, after = data[:first], data[first:stop], data[stop:]
    if kind == "zeroed":
        spoilt = before + bytes(len(part)) + after
    elif kind == "cut":
        spoilt = before + after
    elif kind == "doubled":
        spoilt = before + part + part + after
    else:
        length = min(len(part), len(after))
        spoilt = before + after[:length] + part[length:] + part[:length] + after[length:]
    return Damage(name, kind, first, stop - first, aligned), spoilt


def _range(path: Path, size: int, rng: np.random.Generator, aligned: str) -> tuple[int, int]:
    """A range of 64 bytes to 40 % of the file, short ones as likely as long ones."""
    length = int(np.exp(rng.uniform(np.log(64), np.log(0.4 * size))))
    first = int(rng.integers(0, size - length))
    if aligned == "bytes":
        return first, first + length
    edges: list[int] = list(range(0, size, 512))
    if aligned == "packets":
        edges = sorted({packet.pos for packet in packets_of(path) if packet.pos})
    edges = sorted({0, *edges, size})
    begin = int(np.searchsorted(edges, first, side="right")) - 1
    end = max(int(np.searchsorted(edges, first + length)), begin + 1)
    return edges[begin], edges[end]
