"""What reading costs by codec, against decord and another checkout."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np

from benchmarks.measuring import add_output_arguments, in_turn, show
from benchmarks.reader import PATTERNS, READERS, stream_alone
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.pyav_reader import PictureDecoder
from paddlevideo_fast.errors import PaddleVideoFastError
from tests.support.numbered_clips import usual_scheduling

OURS, DECORD = "ours", "decord"
# Others share the machine: what they cost, and a decoder's threads that spin meanwhile, is in all
# repetitions but the fastest.
_REPEATS = 3
_PARTS = ("open", "decode", "colour")


class _Encoding(NamedTuple):
    """How the first clip is encoded again."""

    codec: str
    ending: str
    options: dict[str, str]
    pix_fmt: str = "yuv420p"


_ENCODINGS = {
    "HEVC": _Encoding("libx265", "mp4", {"crf": "26", "preset": "fast", "x265-params": "log-level=error"}),
    "VP9": _Encoding("libvpx-vp9", "webm", {"crf": "32", "b": "0", "deadline": "good", "cpu-used": "4"}),
    "VP8": _Encoding("libvpx", "webm", {"b": "500000", "deadline": "realtime"}),
    "AV1": _Encoding("libsvtav1", "mp4", {"crf": "32", "preset": "8", "svtav1-params": "keyint=120"}),
    "MPEG-4": _Encoding("mpeg4", "avi", {"b": "900000", "bf": "2"}),
    "MJPEG": _Encoding("mjpeg", "avi", {"q": "3"}, "yuvj420p"),
}


# Runs in the tree that it measures: for a line with file, frames and repetitions, prints seconds of CPU time
# of the fastest. Others share the machine: what they cost is in all repetitions but the fastest.
_WORKER = """
import json, sys, time
from paddlevideo_fast.decode import open_video
for line in sys.stdin:
    path, indices, repeats = json.loads(line)
    took = []
    for _ in range(repeats):
        began = time.process_time()
        with open_video(path) as reader:
            reader.read(indices)
        took.append(time.process_time() - began)
    print(min(took), flush=True)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("clips", nargs="+", help="video files; the first one is also encoded in other codecs")
    parser.add_argument(
        "--also",
        nargs="+",
        default=(),
        metavar="VIDEO",
        help="more videos, to compare codecs alone",
    )
    parser.add_argument("--baseline", type=Path, metavar="FOLDER", help="checkout to compare with")
    parser.add_argument("--rounds", type=count(1), default=9, help="clips to measure of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of frames and crops")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    clips, also = ([Path(clip) for clip in given] for given in (args.clips, args.also))
    show(run(clips, also, args.baseline, args.rounds, args.seed), args, table)


def run(
    clips: Sequence[Path],
    also: Sequence[Path] = (),
    baseline: Path | None = None,
    rounds: int = 9,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures CPU time; each round reads other frames, all sides the same ones in turn. The fastest of three
    turns counts.

    Args:
        clips: video files; the first one is also encoded in other codecs.
        also: more of them, only for "codecs".
        baseline: root of another checkout; None: not measured.
        rounds: reads of each kind.
        seed: of frames and crops.

    Returns:
        "rounds", "seed"; "codecs": for each clip and pattern "ms", "decord" and "baseline" (the median of our
        time over theirs; None where there is none), and "shares" of our time in parts.
    """
    cv2.setNumThreads(0)  # as in a worker
    with tempfile.TemporaryDirectory() as folder:
        files = {clip.name: clip for clip in (*clips, *also)}
        for clip in clips:
            copy = stream_alone(clip, Path(folder))
            if copy is not None:
                files[copy.name] = copy
        for name, encoding in _ENCODINGS.items():
            files[f"{clips[0].stem}, {name}"] = _encoded(clips[0], Path(folder), name, encoding)
        codecs = [row for name, file in files.items() for row in _codec(name, file, baseline, rounds, seed)]
    return {"rounds": rounds, "seed": seed, "codecs": codecs}


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = [f"CPU time, medians of {result['rounds']} rounds, seed {result['seed']}"]
    for row in result["codecs"]:
        shares = ", ".join(f"{part} {100 * share:.0f} %" for part, share in row["shares"].items())
        ratios = [f"{row[side]:.3f}" if row[side] else "-" for side in (DECORD, "baseline")]
        lines.append(
            f"{row['clip']:<26}{row['pattern']:<10}{row['ms']:>8.2f} ms  of decord {ratios[0]:<7} "
            f"of the baseline {ratios[1]:<7} {shares}"
        )
    return "\n".join(lines)


@usual_scheduling()
def _encoded(clip: Path, folder: Path, name: str, encoding: _Encoding) -> Path:
    path = folder / f"{name}.{encoding.ending}"
    with open_video(clip) as reader, av.open(str(path), "w") as container:
        stream = container.add_stream(encoding.codec, rate=round(reader.avg_fps), options=encoding.options)
        stream.width, stream.height, stream.pix_fmt = reader.width, reader.height, encoding.pix_fmt
        stream.codec_context.gop_size = 120
        for frame in reader:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def _codec(name: str, file: Path, baseline: Path | None, rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    tree = Tree(baseline) if baseline else None
    with open_video(file) as reader:
        num_frames = reader.num_frames
    for pattern, draw in PATTERNS.items():
        rng = np.random.default_rng(seed)
        draws = [draw(num_frames, rng) for _ in range(rounds + 1)]
        sides: dict[str, Callable[[int], float]] = {OURS: partial(_read_draw, OURS, file, draws)}
        if _can_read(DECORD, file):
            sides[DECORD] = partial(_read_draw, DECORD, file, draws)
        if tree:
            sides["baseline"] = partial(_of_tree, tree, file, draws)
        times = _fastest(sides, rounds)
        ratios = {
            side: statistics.median(one / other for one, other in zip(times[OURS], times[side]))
            if side in times
            else None
            for side in (DECORD, "baseline")
        }
        shares = _shares(file, draws)
        yield {
            "clip": name,
            "pattern": pattern,
            "ms": statistics.median(times[OURS]) * 1e3,
            **ratios,
            "shares": shares,
        }
    if tree:
        tree.close()


def _fastest(sides: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """The fastest of some turns, for each side and round; a side is a function from the round to seconds."""
    took: dict[str, list[list[float]]] = {side: [[] for _ in range(rounds + 1)] for side in sides}
    for turn, side in in_turn(sides, (rounds + 1) * _REPEATS):
        number = turn // _REPEATS
        took[side][number].append(sides[side](number - 1))
    return {side: [min(turns) for turns in found[1:]] for side, found in took.items()}


def _read_draw(reader: str, file: Path, draws: Sequence[Sequence[int]], turn: int) -> float:
    began = time.process_time()
    READERS[reader](str(file), draws[turn + 1])
    return time.process_time() - began


def _of_tree(tree: Tree, file: Path, draws: Sequence[Sequence[int]], turn: int) -> float:
    return tree.seconds(file, draws[turn + 1], 1)


def _can_read(reader: str, file: Path) -> bool:
    try:
        READERS[reader](str(file), [0])
    except Exception:  # decord has errors of its own, or is not installed
        return False
    return True


def _shares(file: Path, draws: Sequence[Sequence[int]]) -> dict[str, float]:
    """The shares of parts in reading: opening with the index, decoding, colours, and all the rest."""
    seconds = dict.fromkeys((*_PARTS, "total"), 0.0)

    def clocked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[part] += time.thread_time() - began

        return timed

    class Codec:
        def __init__(self, codec: Any) -> None:
            vars(self).update(codec=codec, decode=clocked("decode", codec.decode))

        def __getattr__(self, name: str) -> Any:
            return getattr(vars(self)["codec"], name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(vars(self)["codec"], name, value)

    opened, converted = PictureDecoder.__init__, RgbConverter.__call__

    def open_and_watch(self: Any, *args: Any, **kwargs: Any) -> None:
        opened(self, *args, **kwargs)
        self._codec = Codec(self._codec)

    decoder: Any = PictureDecoder
    converter: Any = RgbConverter
    decoder.__init__, converter.__call__ = clocked("open", open_and_watch), clocked("colour", converted)
    try:
        read = clocked("total", READERS[OURS])
        for indices in draws:
            read(str(file), indices)
    finally:
        decoder.__init__, converter.__call__ = opened, converted
    shares = {part: seconds[part] / seconds["total"] for part in _PARTS}
    return {**shares, "other": 1 - sum(shares.values())}


class Tree:
    """A process that reads videos with the code of one checkout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )

    def seconds(self, clip: Path, indices: Sequence[int], repeats: int) -> float:
        """CPU time of opening the clip and reading frames: the fastest of so many times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(clip.resolve()), list(indices), repeats]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PaddleVideoFastError(f"{self._root}: its reader fails on {clip}")
        return float(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
