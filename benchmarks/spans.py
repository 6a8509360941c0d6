"""Wrong frames of 500 spans on each of many kinds of videos, as they are and stored in every form."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import add_output_arguments, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import IndexCache, index_cache
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.dataset import (
    ClipDataset,
    FrameDataset,
    PackedFrameDataset,
    VideoDataset,
    VideoDecoder,
)
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.sampling import Sampler
from paddlevideo_fast.preparation.frames import extract
from paddlevideo_fast.preparation.packing import pack
from paddlevideo_fast.preparation.videos import prepare_list
from tests.support.exact_corpus import Clip, write_corpus_clip
from tests.support.numbered_clips import read_number

KINDS = (
    "h264_b_frames.mp4",
    "h264_gop_250.mp4",
    "h264_open_gop.mp4",
    "h264_open_gop.mkv",
    "h264_open_gop.ts",
    "h264_open_gop.flv",
    "h264_b_frames.avi",
    "h264_intra_refresh.mp4",
    "h264_variable_rate.mp4",
    "h264_variable_rate.mkv",
    "h264_fragments.mp4",
    "h264_late_start.mkv",
    "h264_negative_start.ts",
    "h264_long_audio.mp4",
    "edit_list_both_ends.mp4",
    "hevc_open_gop.mkv",
    "vp8.webm",
    "vp9.webm",
    "mpeg4_b_frames.avi",
    "mpeg4_variable_rate.avi",
    "mpeg2.ts",
    "mjpeg.mov",
)
_FPS = 25
_TOLERANCE = Fraction(1, 2000)


class Listed(NamedTuple):
    """A list, and for each of its records the numbers that its frames carry."""

    file: Path
    folder: Path
    shown: list[list[int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--spans", type=count(1), default=500, help="spans of each video (default 500)")
    parser.add_argument("--cut", type=count(1), default=25, help="spans of each that are cut (default 25)")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, metavar="NAME", help="only this; repeatable"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the spans")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args.kind or KINDS, args.spans, args.cut, args.seed), args, table)


def run(names: Sequence[str], num_spans: int, num_cut: int, seed: int = 0) -> dict[str, Any]:
    """Reads every frame of every span through the data sets that training uses.

    Args:
        names: files of the corpus.
        num_spans: of each file, half of them in seconds.
        num_cut: of these, how many are cut by the data tools, with a margin of two frames.
        seed: of the spans.

    Returns:
        "num_spans", "num_cut", and "forms": for each form "spans", "frames", "wrong" (spans with other
        frames than theirs) and "files" (of those, the files).
    """
    forms: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        clips = dict(_written(root / "videos", name) for name in names)
        whole = _plain_list(root, clips)
        listed = _listed(root, "spans.jsonl", clips, num_spans, seed)
        cut = _listed(root, "cut.jsonl", clips, num_cut, seed + 1)
        with contextlib.redirect_stdout(io.StringIO()):
            words = ["--data_prefix", str(root / "videos")]
            prepare_list(["--list", str(whole), *words, "--output", str(root / "p"), "--short_side", "48"])
            extract(["--list", str(whole), *words, "--output", str(root / "f")])
            pack(["--list", str(whole), *words, "--output", str(root / "k"), "--short_side", "0"])
            words += ["--list", str(cut.file), "--margin", "2", "--output"]
            prepare_list([*words, str(root / "cp"), "--short_side", "48"])
            extract([*words, str(root / "cf")])
            pack([*words, str(root / "ck"), "--short_side", "0"])
        forms["video"] = _tally(VideoDataset, listed)
        index_cache._MIN_PACKETS = 10  # the clips are short
        forms["video, index on disk"] = _tally(VideoDataset, listed, str(root / "indexes"))
        forms["prepared"] = _tally(VideoDataset, _renamed(root / "p", clips, listed, ".mp4"))
        forms["frames"] = _tally(FrameDataset, _in_frames(root / "f", clips, num_spans, seed))
        forms["packed"] = _tally(PackedFrameDataset, listed._replace(folder=root / "k"))
        stored: tuple[tuple[str, str, type[ClipDataset]], ...] = (
            ("prepared, cut", "cp", VideoDataset),
            ("frames, cut", "cf", FrameDataset),
            ("packed, cut", "ck", PackedFrameDataset),
        )
        for form, folder, cls in stored:
            forms[form] = _tally(cls, Listed(root / folder / "cut.jsonl", root / folder, cut.shown))
    return {"num_files": len(names), "num_spans": num_spans, "num_cut": num_cut, "seed": seed, "forms": forms}


def _written(folder: Path, name: str) -> tuple[str, Clip]:
    """A file of the corpus under a name whose stem no other has."""
    clip = write_corpus_clip(folder, name, 60)
    path = clip.path.with_name(f"{clip.path.stem}_{clip.path.suffix[1:]}{clip.path.suffix}")
    clip.path.rename(path)
    return path.name, clip._replace(path=path)


def _ticks(name: str, clip: Clip) -> list[int]:
    """When each frame is shown, in 25ths of a second, as `write_clip` writes it."""
    varies = "variable" in name
    return [number + (number * number // 8 if varies else 0) for number in range(len(clip.numbers))]


def _plain_list(root: Path, clips: dict[str, Clip]) -> Path:
    file = root / "whole.jsonl"
    file.write_text("".join(json.dumps({"path": name, "label": 0}) + "\n" for name in clips))
    return file


def _spans(name: str, clip: Clip, number: int, rng: np.random.Generator) -> tuple[dict[str, Any], list[int]]:
    """Keys of a random span, and the numbers that it shows: by brute force over exact times."""
    ticks, total = _ticks(name, clip), len(clip.numbers)
    if number % 2:
        first = int(rng.integers(0, total))
        stop = int(rng.integers(first + 1, min(first + 20, total) + 1))
        return {"start_frame": first, "end_frame": stop}, clip.numbers[first:stop]
    length = Fraction(ticks[-1] + 1, _FPS)
    start = Fraction(int(rng.integers(0, int(length * 1000) - 50)), 1000)
    end = min(start + Fraction(int(rng.integers(20, 800)), 1000), length)
    times = [Fraction(tick, _FPS) for tick in ticks]
    inside = [place for place, time in enumerate(times) if start - _TOLERANCE <= time < end - _TOLERANCE]
    if not inside:  # the frame on display
        inside = [max(place for place, time in enumerate(times) if time < end - _TOLERANCE)]
    keys = {"start_sec": float(start), "end_sec": float(end)}
    return keys, [clip.numbers[place] for place in inside]


def _listed(root: Path, name: str, clips: dict[str, Clip], num_spans: int, seed: int) -> Listed:
    rng = np.random.default_rng(seed)
    lines, shown, seen = [], [], set()
    for file, clip in clips.items():
        number = 0
        while number < num_spans:
            keys, numbers = _spans(file, clip, number, rng)
            line = json.dumps({"path": file, "label": number % 4, **keys})
            number += 1
            if (file, *keys.items()) not in seen or num_spans > 100:
                seen.add((file, *keys.items()))
                lines.append(line + "\n")
                shown.append(numbers)
    (root / name).write_text("".join(lines))
    return Listed(root / name, root / "videos", shown)


def _renamed(folder: Path, clips: dict[str, Clip], listed: Listed, ending: str) -> Listed:
    """The same spans of the same videos under their new names."""
    rows = [json.loads(line) for line in listed.file.read_text().splitlines()]
    for row in rows:
        row["path"] = str(Path(row["path"]).with_suffix(ending))
    file = folder / "renamed.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Listed(file, folder, listed.shown)


def _in_frames(folder: Path, clips: dict[str, Clip], num_spans: int, seed: int) -> Listed:
    """Spans of folders of images, which have no times."""
    rng, lines, shown = np.random.default_rng(seed), [], []
    for name, clip in clips.items():
        for _ in range(num_spans):
            keys, numbers = _spans(name, clip, 1, rng)
            row = {"path": Path(name).stem, "label": 0, "num_frames": len(clip.numbers), **keys}
            lines.append(json.dumps(row) + "\n")
            shown.append(numbers)
    file = folder / "spans.jsonl"
    file.write_text("".join(lines))
    return Listed(file, folder, shown)


def _tally(cls: type[ClipDataset], listed: Listed, cache: str = "") -> dict[str, Any]:
    """Reads all records of a list, and counts those that show something else."""
    pipeline = Pipeline(Sampler(1, 1, valid_mode=True), [])
    make = functools.partial(cls, pipeline=pipeline, seed=0, training=False)
    dataset = make(str(listed.file), data_prefix=str(listed.folder))
    if cache and isinstance(dataset.decoder, VideoDecoder):
        dataset.decoder.cache = IndexCache(cache)
    wrong: list[str] = []
    for record, expected in zip(dataset.records, listed.shown):
        try:
            with dataset.open(record) as reader:
                found = [read_number(frame) for frame in dataset.part(reader, record)]
        except PaddleVideoFastError as error:
            found = [str(error)]  # type: ignore[list-item]
        if found != expected:
            wrong.append(Path(record.path).name)
    return {
        "spans": len(dataset.records),
        "frames": sum(map(len, listed.shown)),
        "wrong": len(wrong) + abs(len(dataset.records) - len(listed.shown)),
        "files": sorted(set(wrong)),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{result['num_files']} kinds of videos, {result['num_spans']} spans each; cut: {result['num_cut']}",
        f"{'':<24}{'spans':>8}{'frames':>9}{'wrong':>7}",
    ]
    for form, one in result["forms"].items():
        files = f"  {', '.join(one['files'])}" if one["files"] else ""
        lines.append(f"{form:<24}{one['spans']:>8}{one['frames']:>9}{one['wrong']:>7}{files}")
    return "\n".join(lines)
