"""CPU time and wrong frames of readers of videos: ours, also on prepared videos, and others."""

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import av
import cv2
import numpy as np

from benchmarks.measuring import Natural, Positive, quartiles, ratios, versions_of, write_clips, write_video
from benchmarks.reader_trials import TorchCodec, given_of
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.transforms import crop as crops
from paddlevideo_fast.loader.transforms.geometry import ClipGeometry, Geometric
from tests.support.numbered_clips import usual_scheduling

PREPARED = "ours, prepared"
BASELINE = "decord"
_ALONE = " (stream 1)"
# Levels of 255. Readers round colours differently, which moves all frames alike; neighbours of a still scene
# are nearer to each other than this.
_SAME = 0.5
_SMALL_PX = 32

# What is taken of a frame.
WHOLE = "whole"
CROPS: dict[str, Sequence[Geometric]] = {
    WHOLE: (),
    "center": (crops.Scale(256, fixed_ratio=False), crops.CenterCrop(224)),
    "random": (crops.RandomResizedCrop(target_size=224),),
}


class Crop(NamedTuple):
    """A part of each frame: left, top, width and height in pixels; and what draws it at 224×224."""

    box: Sequence[int]
    geometry: ClipGeometry

    def cut(self, frames: np.ndarray) -> np.ndarray:
        """The part of each frame, by OpenCV's plain resize."""
        left, top, width, height = self.box
        parts = frames[:, top : top + height, left : left + width]
        return np.stack([cv2.resize(part, (self.geometry.width,) * 2) for part in parts])

    def draw(self, frames: Iterable[tuple[Sequence[int], Any]], num_frames: int) -> np.ndarray:
        """The part of each frame as our loader draws it, from pairs of the slots of a frame and the frame."""
        resample = self.geometry.plan()
        clip = np.empty(resample.shape(num_frames), np.uint8)
        for slots, frame in frames:
            resample.draw(frame, clip, slots)
        return clip


def _crop_of(frames: np.ndarray, steps: Sequence[Geometric], rng: np.random.Generator) -> Crop | None:
    geometry = ClipGeometry(frames.shape[2], frames.shape[1])
    for step in steps:
        step.apply(geometry, rng)
    (view,) = geometry.views
    box = [round(side) for side in (view.left, view.top, view.width, view.height)]
    return Crop(box, geometry) if steps else None


Read = Callable[..., np.ndarray]  # takes a path and frame numbers; ours also a crop


def _sparse(num_frames: int, rng: np.random.Generator) -> list[int]:
    """TSN's pattern: one frame from each of 8 segments."""
    return [min(int((segment + rng.random()) * num_frames / 8), num_frames - 1) for segment in range(8)]


def _dense(num_frames: int, rng: np.random.Generator) -> list[int]:
    """SlowFast's pattern: 32 frames at stride 2. A shorter video repeats its last frame."""
    first = int(rng.integers(max(num_frames - 64, 0) + 1))
    return [min(first + 2 * step, num_frames - 1) for step in range(32)]


PATTERNS = {"sparse-8": _sparse, "32x2": _dense}


def _opencv(path: str, indices: Sequence[int]) -> np.ndarray:
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    frames = {}
    for number in range(max(indices) + 1):
        if not capture.grab():
            raise ValueError(f"stops at frame {number}")
        if number in indices:
            frames[number] = cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
    capture.release()
    return np.stack([frames[index] for index in indices])


def _decord(path: str, indices: Sequence[int]) -> np.ndarray:
    import decord

    frames: np.ndarray = decord.VideoReader(path, num_threads=1).get_batch(list(indices)).asnumpy()
    return frames


def _in_sequence(path: str, indices: Sequence[int] | None = None) -> np.ndarray:
    """Frames by decoding from the beginning. The other readers are checked against this plain loop."""
    frames = {}
    with av.open(path) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if indices is None or number in indices:
                frames[number] = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                if indices is not None and number == max(indices):
                    break
    return np.stack([frames[index] for index in (range(len(frames)) if indices is None else indices)])


def _ours(path: str, indices: Sequence[int], crop: Crop | None = None) -> np.ndarray:
    with open_video(path, "pyav") as reader:
        if crop is None:
            return reader.read(indices)
        pictures = reader.frames(indices, (reader.width, reader.height), whole=False)
        slotted = (
            ([slot for slot, index in enumerate(indices) if index == number], picture)
            for number, picture in pictures
        )
        return crop.draw(slotted, len(indices))


READERS: dict[str, Read] = {
    "OpenCV": _opencv,
    BASELINE: _decord,
    "PyAV in sequence": _in_sequence,
    "ours": _ours,
    PREPARED: _ours,
}


def _read_by_torchcodec(
    worker: TorchCodec, path: str, indices: Sequence[int], crop: Crop | None
) -> tuple[np.ndarray, float]:
    """The frames, and the CPU time of the process that read them."""
    part = {} if crop is None else {"box": crop.box, "size": crop.geometry.width}
    answer = worker.ask({"path": path, "reads": [list(indices)], **part})
    (frames,) = given_of(answer).reads if answer and answer["reads"] else (None,)
    if frames is None:
        raise ValueError("torchcodec gives no frames")
    return np.stack(frames), answer["seconds"]


# How `--codecs` encodes the first video: codec, ending, options, format of the pixels.
CODECS: dict[str, tuple[str, str, dict[str, str], str]] = {
    "HEVC": ("libx265", "mp4", {"crf": "26", "x265-params": "log-level=error"}, "yuv420p"),
    "VP9": ("libvpx-vp9", "webm", {"crf": "32", "b": "0", "deadline": "good", "cpu-used": "4"}, "yuv420p"),
    "VP8": ("libvpx", "webm", {"b": "500000", "deadline": "realtime"}, "yuv420p"),
    "AV1": ("libsvtav1", "mp4", {"crf": "32", "preset": "8", "svtav1-params": "keyint=120"}, "yuv420p"),
    "MPEG-4": ("mpeg4", "avi", {"b": "900000", "bf": "2"}, "yuv420p"),
    "MJPEG": ("mjpeg", "avi", {"q": "3"}, "yuvj420p"),
}


def run(
    clips: Path | None = None,
    prepared: Path | None = None,
    codecs: bool = False,
    crop: Annotated[str, CROPS] = WHOLE,
    torchcodec: Sequence[str] = (),
    rounds: Positive = 15,
    seed: Natural = 0,
) -> dict[str, Any]:
    """Opens and reads videos with every reader in turn, on one thread each, and checks the frames.

    Args:
        clips: folder of videos; by default, three generated ones.
        prepared: output folder of data/prepare_videos.py for the same videos.
        codecs: also read the first video encoded in other codecs.
        crop: end with 224×224 pixels of each frame, as tests ("center": the short side becomes 256) and
            trainings ("random": RandomResizedCrop) take them.
        torchcodec: also read with torchcodec or paddlecodec, which these Pythons have; they need OpenCV, and
            FFmpeg's libraries in LD_LIBRARY_PATH.
        rounds: how often each reader reads each pattern.
        seed: of the frames; all readers read the same ones.

    Returns:
        "versions", "means" and "rows": one row a clip, pattern and reader, with
        "ms" (the median CPU time of a read with opening), "ratio" to decord (the median over the rounds; None
        without it) and its quartiles "spread", "wrong" (frames given that are not the one asked for) out of
        "frames", and "error", which says why a reader gives none. A clip with several video streams, of which
        decord reads the largest and the others the first, is followed by a copy that has the first alone.
        "means" has the geometric means of the ratios, by pattern and reader: "as_is" over the clips,
        "one_stream" over the copies and the clips that need none.

    Raises:
        PaddleVideoFastError: a prepared video is missing, there are no videos, or --crop meets prepared ones.
    """
    if prepared and crop != WHOLE:
        raise PaddleVideoFastError(f"--prepared is for whole frames: leave --crop {crop} out")
    cv2.setNumThreads(0)  # as in a worker
    versions = versions_of("av", "decord", "decord2", "numpy", "opencv-python-headless", "opencv-python")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        readers = {name: partial(_timed, read) for name, read in READERS.items()}
        for python in torchcodec:
            worker = stack.enter_context(TorchCodec(python))
            readers[worker.package] = partial(_read_by_torchcodec, worker)
            versions[worker.package] = worker.version
        measure = partial(_measure_clip, readers, CROPS[crop], rounds=rounds, seed=seed)
        videos = _videos(clips) if clips else write_clips(folder)
        copies = {video: copy for video in videos if (copy := stream_alone(video, folder))}
        files = [file for video in videos for file in (video, copies.get(video)) if file]
        rows = [row for file in files for row in measure(file, prepared)]
        for name in CODECS if codecs else ():
            rows += measure(_encoded(videos[0], folder, name), None)
    groups = {"as_is": videos, "one_stream": [copies.get(video, video) for video in videos]}
    means = {
        pattern: {group: _means(rows, pattern, files) for group, files in groups.items()}
        for pattern in PATTERNS
    }
    return {"versions": versions, "crop": crop, "rows": rows, "means": means}


def _cropped(crop: Crop, frames: np.ndarray, reader: str) -> np.ndarray:
    """Parts of frames by the resize of this reader: ours begin between two pixels, too."""
    if READERS.get(reader) is not _ours:
        return crop.cut(frames)
    return crop.draw((([slot], frame) for slot, frame in enumerate(frames)), len(frames))


def _timed(read: Read, path: str, indices: Sequence[int], crop: Crop | None) -> tuple[np.ndarray, float]:
    began = time.process_time()
    if crop is None:
        frames = read(path, indices)
    else:
        frames = _ours(path, indices, crop) if read is _ours else crop.cut(read(path, indices))
    return frames, time.process_time() - began


def _measure_clip(
    readers: Mapping[str, Callable[..., tuple[np.ndarray, float]]],
    steps: Sequence[Geometric],
    clip: Path,
    prepared: Path | None,
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    sources = {
        BASELINE: clip if importlib.util.find_spec("decord") else None,
        PREPARED: prepared and _prepared_file(clip, prepared),
    }
    files = {name: file for name in readers if (file := sources.get(name, clip)) is not None}
    whole = {file: _in_sequence(str(file)) for file in set(files.values())}
    checks = {name: Check(whole[file]) for name, file in files.items()}
    rows = []
    for pattern, draw in PATTERNS.items():
        rng = np.random.default_rng(seed)
        measured: dict[str, dict[str, Any]] = {
            name: {"seconds": [], "wrong": 0, "frames": 0, "error": None} for name in files
        }
        for _ in range(rounds):
            indices, crop = draw(len(whole[clip]), rng), _crop_of(whole[clip], steps, rng)
            if crop is not None:
                checks = {name: Check(_cropped(crop, whole[file], name)) for name, file in files.items()}
            for name, file in files.items():  # in turn: all see the same machine
                read = partial(readers[name], str(file), indices, crop)
                _measure(measured[name], read, indices, checks[name])
        seconds = {name: side.pop("seconds") for name, side in measured.items()}
        for name, side in measured.items():
            costs = _costs([] if side["error"] else seconds[name], seconds.get(BASELINE, []))
            rows.append({"clip": clip.name, "pattern": pattern, "reader": name, **costs, **side})
    return rows


def _measure(
    side: dict[str, Any], read: Callable[[], tuple[np.ndarray, float]], indices: Sequence[int], check: "Check"
) -> None:
    if side["error"]:
        return
    try:
        frames, seconds = read()
    except Exception as error:  # every reader has types of its own
        side["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return
    side["seconds"].append(seconds)
    side["frames"] += len(indices)
    side["wrong"] += check.count_wrong(frames, indices)


class Check:
    """Recognises frames of a video by small versions of all of them.

    Args:
        frames: all frames, uint8 [T, H, W, 3].
    """

    def __init__(self, frames: np.ndarray) -> None:
        self.num_frames = len(frames)
        self._shape = frames.shape[1:]
        self._small = _shrink(frames)

    def count_wrong(self, frames: np.ndarray, indices: Sequence[int]) -> int:
        """How many frames are not rotated for display, or look more like another frame of the video.

        Args:
            frames: uint8 [T, H, W, 3].
            indices: the requested frame numbers.
        """
        if frames.shape[1:] != self._shape:
            return len(indices)
        wrong = 0
        for small, index in zip(_shrink(frames), indices):
            distances = np.abs(self._small - small).mean(axis=(1, 2, 3))
            wrong += bool(distances[index] > distances.min() + _SAME)
        return wrong


def _shrink(frames: np.ndarray) -> np.ndarray:
    small = [cv2.resize(frame, (_SMALL_PX, _SMALL_PX), interpolation=cv2.INTER_AREA) for frame in frames]
    return np.stack(small).astype(np.float32)


def _costs(seconds: list[float], baseline: list[float]) -> dict[str, Any]:
    # round by round; none where one of them did not take part in all
    shares = ratios(seconds, baseline) if len(seconds) == len(baseline) else []
    return {
        "ms": statistics.median(seconds) * 1e3 if seconds else None,
        "ratio": statistics.median(shares) if shares else None,
        "spread": quartiles(shares) if shares else None,
    }


def _means(rows: Sequence[dict[str, Any]], pattern: str, clips: Sequence[Path]) -> dict[str, float]:
    """Reader → geometric mean of its ratios over the clips."""
    found: dict[str, list[float]] = {}
    names = {clip.name for clip in clips}
    for row in rows:
        if row["pattern"] == pattern and row["clip"] in names and row["ratio"] is not None:
            found.setdefault(row["reader"], []).append(row["ratio"])
    return {reader: statistics.geometric_mean(values) for reader, values in found.items()}


@usual_scheduling()
def _encoded(video: Path, folder: Path, name: str) -> Path:
    codec, ending, options, pix_fmt = CODECS[name]
    path = folder / f"{video.stem}, {name}.{ending}"
    with open_video(video) as reader:
        return write_video(path, reader, codec, round(reader.avg_fps), options, pix_fmt)


def stream_alone(clip: Path, folder: Path) -> Path | None:
    """A copy of the clip with only its first video stream, not encoded again; None if it has no other."""
    copy = folder / f"{clip.stem}{_ALONE}{clip.suffix}"
    with av.open(str(clip)) as source:
        if len(source.streams.video) < 2:
            return None
        stream = source.streams.video[0]
        with av.open(str(copy), "w") as target:
            written = target.add_stream_from_template(stream)
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last one only says that there is no more
                    packet.stream = written
                    target.mux(packet)
    return copy


def _videos(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise PaddleVideoFastError(f"{folder}: no such folder of videos")
    videos = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in VIDEO_EXTENSIONS]
    readable = [path for path in videos if _can_decode(path)]
    if not readable:
        raise PaddleVideoFastError(f"{folder}: has no video that decodes")
    for path in sorted(set(videos) - set(readable)):
        print(f"left out, for it does not decode: {path}", file=sys.stderr)
    return readable


def _can_decode(path: Path) -> bool:
    try:
        return len(_in_sequence(str(path))) > 0
    except (av.FFmpegError, ValueError):
        return False


def _prepared_file(clip: Path, folder: Path) -> Path:
    stem = clip.stem.replace(_ALONE, "")
    found = [path for path in sorted(folder.rglob(f"{stem}.*")) if path.suffix.lower() in VIDEO_EXTENSIONS]
    if not found:
        raise PaddleVideoFastError(f"{folder}: has no prepared video of {clip.name}")
    return found[0]
