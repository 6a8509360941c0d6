"""Re-encodes one video for training; `prepare_videos.py` does it to a list.

The rate factor is searched for each video: a few groups of pictures are encoded until their PSNR is the one
asked for, then all of it, and frames read back from the result are compared with what was stored.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import av
import numpy as np
from _storing import BT601_LIMITED, PrepareError, Source, Times, to_rgb

from paddlevideo_fast.decode import open_video


class Preset(NamedTuple):
    """How the pictures of a video depend on one another.

    Attributes:
        gop: frames from one key picture to the next.
        bframes: most pictures in a row that no other refers to, which the reader can leave out.
    """

    gop: int
    bframes: int


PRESETS = {"sparse": Preset(8, 7), "dense": Preset(32, 7), "intra": Preset(1, 0)}


class Settings(NamedTuple):
    """What a prepared video is made with.

    Attributes:
        preset: a key of `PRESETS`.
        short_side_px: longer short sides are scaled down to it; even.
        target_psnr_db: what the result is to have.
    """

    preset: str
    short_side_px: int
    target_psnr_db: float


class Prepared(NamedTuple):
    """What came of one video.

    Attributes:
        num_frames: frames of the source, and of the result.
        bytes_before: size of the source file.
        bytes_after: size of the result.
        psnr_db: of the compared frames together, RGB.
        min_psnr_db: of the worst of them.
        crf: the rate factor found.
    """

    num_frames: int
    bytes_before: int
    bytes_after: int
    psnr_db: float
    min_psnr_db: float
    crf: float


# Groups begin at fixed frames and depend on no other; no picture depends on a B-picture. The rest makes
# decoding faster (one reference; `fastdecode`: no CABAC, deblocking or weighted prediction) or takes fewer
# bytes for the same PSNR (`psnr`: none go into what only looks sharper; b-adapt 2).
_X264 = {
    "preset": "medium",
    "tune": "psnr+fastdecode",
    "x264-params": "scenecut=0:open-gop=0:b-pyramid=none:b-adapt=2:ref=1",
    "a53cc": "0",
}
_CRF_RANGE = (2.0, 38.0)
_FIRST_CRF = 25.0
_DB_PER_CRF = -0.6  # about what one step changes; measured steps replace it
_CLOSE_DB = 0.15
_TOLERANCE_DB = 0.25
_NUM_TRIALS = 3
_NUM_TRIAL_FRAMES = 72
_NUM_COMPARED_FRAMES = 16
_LOSSLESS_DB = 99.0


def encode(
    pictures: Iterable[av.VideoFrame],
    path: Path,
    preset: Preset,
    crf: float,
    times: Times,
    colour: Dict[str, int],
) -> None:
    """Writes an MP4 file without sound whose index comes first.

    Args:
        pictures: 4:2:0, of one even size.
        path: the file to write.
        preset: how pictures depend on one another.
        crf: rate factor of x264.
        times: of each picture.
        colour: tags of the encoder.

    Raises:
        av.FFmpegError: writing or encoding fails.
    """
    pictures = iter(pictures)
    first = next(pictures)
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as output:
        stream = output.add_stream("libx264", rate=times.rate, options={**_X264, "crf": f"{crf:.2f}"})
        stream.width, stream.height, stream.pix_fmt = first.width, first.height, first.format.name
        codec = stream.codec_context
        codec.time_base = times.unit_sec
        codec.gop_size, codec.max_b_frames, codec.thread_count = preset.gop, preset.bframes, 1
        for tag, value in colour.items():
            setattr(codec, tag, value)
        for picture, timestamp in zip(chain([first], pictures), times.timestamps):
            picture.pts, picture.time_base = timestamp, times.unit_sec
            picture.pict_type = 0  # the source's kind of picture is not to be kept
            output.mux(stream.encode(picture))
        output.mux(stream.encode())


def prepare(path: str, target: Path, settings: Settings) -> Prepared:
    """Writes the prepared video `target`, completely or not at all.

    Args:
        path: the source.
        target: an MP4 file; its folder exists.
        settings: see `Settings`.

    Raises:
        VideoDecodeError: the source does not decode.
        PrepareError: the result is not as good as asked for, or not whole.
        av.FFmpegError: writing or encoding fails.
    """
    partial = target.with_name(f".partial-{target.name}")
    preset, wanted_db = PRESETS[settings.preset], settings.target_psnr_db
    try:
        with Source(path, settings.short_side_px) as source:
            crf = _find_crf(source, partial, preset, wanted_db)
            for _ in range(_NUM_TRIALS):
                kept: Dict[int, np.ndarray] = {}
                encode(_keeping(source, kept), partial, preset, crf, source.times, source.colour)
                psnr_db, min_psnr_db = _compare(partial, source.num_frames, kept)
                if psnr_db >= wanted_db - _TOLERANCE_DB:
                    sizes = os.path.getsize(path), os.path.getsize(partial)
                    os.replace(partial, target)
                    return Prepared(source.num_frames, *sizes, psnr_db, min_psnr_db, round(crf, 2))
                crf = _next_crf([(crf, psnr_db)], wanted_db)
        raise PrepareError(f"reaches a PSNR of {psnr_db:.1f} dB, not {wanted_db:.1f}; lower --target_psnr")
    finally:
        partial.unlink(missing_ok=True)


def _find_crf(source: Source, scratch: Path, preset: Preset, wanted_db: float) -> float:
    """The rate factor that gives groups of pictures from all over the source the PSNR wanted."""
    groups = trial_groups(source.num_frames, preset.gop)
    pictures = [picture for group in groups for picture in source.trial_pictures(group)]
    references = [to_rgb(picture) for picture in pictures]
    times = Times(range(len(pictures)), Fraction(1, 25), Fraction(25))
    crf, trials = _FIRST_CRF, []
    for _ in range(_NUM_TRIALS):
        encode(pictures, scratch, preset, crf, times, BT601_LIMITED)
        with open_video(str(scratch)) as reader:
            reached_db = psnr([squared_error(one, other) for one, other in zip(references, reader)])
        trials.append((crf, reached_db))
        crf = _next_crf(trials, wanted_db)
        if abs(reached_db - wanted_db) <= _CLOSE_DB:
            break
    return crf


def trial_groups(num_frames: int, gop: int) -> List[range]:
    """Frame numbers of groups of pictures, evenly spread; all of them in a short video."""
    starts = range(0, num_frames, gop)
    count = min(len(starts), max(2, min(12, _NUM_TRIAL_FRAMES // gop)))
    chosen = [starts[place * len(starts) // count] for place in range(count)]
    return [range(start, min(start + gop, num_frames)) for start in chosen]


def _next_crf(trials: Sequence[Tuple[float, float]], wanted_db: float) -> float:
    """By the line through the last two of `trials`, each a rate factor and what it reached in dB."""
    crf, reached_db = trials[-1]
    slope = _DB_PER_CRF
    if len(trials) > 1 and trials[-2][0] != crf:
        slope = (reached_db - trials[-2][1]) / (crf - trials[-2][0])
    slope = min(max(slope, -1.2), -0.3)
    low, high = _CRF_RANGE
    return min(max(crf + (wanted_db - reached_db) / slope, low), high)


def _keeping(source: Source, kept: Dict[int, np.ndarray]) -> Iterator[av.VideoFrame]:
    """The pictures of `source`; those to be compared are put into `kept`, by frame number, in RGB."""
    last = source.num_frames - 1
    chosen = {round(place * last / (_NUM_COMPARED_FRAMES - 1)) for place in range(_NUM_COMPARED_FRAMES)}
    for index, picture in enumerate(source):
        if index in chosen:
            kept[index] = to_rgb(picture)
        yield picture


def _compare(path: Path, num_frames: int, kept: Dict[int, np.ndarray]) -> Tuple[float, float]:
    """PSNR in dB of the frames `kept`, by number, against those read from `path`: together, and of the worst.

    Raises:
        PrepareError: the reader does not count `num_frames`.
    """
    with open_video(str(path)) as reader:
        if reader.num_frames != num_frames:
            raise PrepareError(f"has {num_frames} frames, of which {reader.num_frames} can be read back")
        results = reader.read(list(kept))
    errors = [squared_error(stored, result) for stored, result in zip(kept.values(), results)]
    return psnr(errors), psnr([max(errors)])


def squared_error(one: np.ndarray, other: np.ndarray) -> float:
    """Mean squared difference of two pictures, uint8 [h, w, 3]."""
    return float(np.mean(np.square(one.astype(np.float32) - other)))


def psnr(squared_errors: Sequence[float]) -> float:
    """PSNR in dB of pictures together, from the mean squared error of each; at most 99."""
    mean = sum(squared_errors) / len(squared_errors)
    return _LOSSLESS_DB if mean == 0 else min(_LOSSLESS_DB, 10 * math.log10(255**2 / mean))
