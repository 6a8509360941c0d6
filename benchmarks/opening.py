"""What opening a span of an hour-long video costs beside decoding its clip, with an index and without."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import av

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from tests.support.numbered_clips import write_clip

_SIZE, _GOP, _SECONDS = (320, 240), 250, 40
_CLIPS = {"8 frames of 10 s": (10.0, 8), "32 frames of 2.5 s": (2.5, 32)}

# A process of its own: for each span the CPU seconds of opening the file and of decoding its clip.
_WORKER = """
import json, sys, time
import numpy as np
from paddlevideo_fast.decode import IndexCache, Span, open_video
path, folder, num_spans, length_sec, num_frames, end_sec = json.loads(sys.argv[1])
cache = IndexCache(folder) if folder else None
rng = np.random.default_rng(0)
for start in rng.uniform(0, end_sec - length_sec, num_spans).tolist():
    began = time.process_time()
    reader = open_video(path, cache=cache)
    part = reader.part(Span(start, start + length_sec, "sec"))
    opened = time.process_time()
    part.read(np.linspace(0, part.num_frames - 1, num_frames).astype(int))
    decoded = time.process_time()
    reader.close()
    closed = time.process_time()
    print(json.dumps([opened - began + closed - decoded, decoded - opened]))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--spans", type=count(1), default=500, help="spans of the video (default 500)")
    parser.add_argument("--rounds", type=count(1), default=3, help="processes with the index (default 3)")
    parser.add_argument("--seconds", type=count(60), default=3600, help="length of the video (default 3600)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args.spans, args.rounds, args.seconds), args, table)


def run(num_spans: int, rounds: int, seconds: int) -> dict[str, Any]:
    """Opens spans at random places in fresh processes, one after the other.

    Args:
        num_spans: of the video, for a process that has the index; without it, a fiftieth.
        rounds: processes of each kind; the medians of their sums are the result.
        seconds: length of the video.

    Returns:
        "video" and "rows": for each container and clip "opening_sec" without and with the index, "first_sec"
        of the first opening of a process with the index, "decoding_sec", and "share" of opening in decoding
        with the index; all of CPU time, per span.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder) / "short.mp4"
        write_clip(short, 25 * _SECONDS, size=_SIZE, gop=_GOP, bframes=3)
        for ending in ("mp4", "mkv"):
            path = Path(folder) / f"hour.{ending}"
            repeat(short, path, seconds)
            for name, (length_sec, num_frames) in _CLIPS.items():
                asked = (length_sec, num_frames, float(seconds))
                cache = str(Path(folder) / f"cache {name}")
                spent(path, cache, 1, asked)  # the first run stores the index
                found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
                for _, side in in_turn(found, rounds):
                    few = max(1, num_spans // 50)
                    times = spent(
                        path, cache if side == "with" else None, num_spans if side == "with" else few, asked
                    )
                    found[side].append(times)
                row = {
                    key: statistics.median(one[key] for one in found["with"])
                    for key in ("opening_sec", "first_sec", "decoding_sec")
                }
                without = statistics.median(one["opening_sec"] for one in found["without"])
                share = row["opening_sec"] / row["decoding_sec"]
                first_share = row["first_sec"] / row["decoding_sec"]
                rows.append(
                    {
                        "container": ending,
                        "clip": name,
                        "without_sec": without,
                        **row,
                        "share": share,
                        "first_share": first_share,
                    }
                )
        num_bytes = path.stat().st_size
    video = {"seconds": seconds, "size": _SIZE, "gop": _GOP, "fps": 25, "bytes": num_bytes}
    return {"video": video, "num_spans": num_spans, "rounds": rounds, "rows": rows}


def repeat(short: Path, path: Path, seconds: int) -> None:
    """Writes the packets of a short video again and again, until `path` lasts so many seconds."""
    with av.open(str(short)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        length = round(_SECONDS / stream.time_base)
        for number in range(-(-seconds // _SECONDS)):
            for packet in packets:
                again = av.Packet(bytes(packet))
                again.pts, again.dts = packet.pts + number * length, packet.dts + number * length
                again.time_base, again.is_keyframe = packet.time_base, packet.is_keyframe
                again.duration, again.stream = packet.duration, copy
                target.mux(again)


def spent(path: Path, cache: str | None, num_spans: int, asked: Any) -> dict[str, float]:
    """Mean CPU seconds a span of opening and decoding in a process of its own, and of its first opening."""
    words = json.dumps([str(path), cache, num_spans, *asked])
    done = subprocess.run([sys.executable, "-c", _WORKER, words], capture_output=True, text=True, check=True)
    times = [json.loads(line) for line in done.stdout.splitlines()]
    opening, decoding = (statistics.mean(column) for column in zip(*times))
    return {"opening_sec": opening, "decoding_sec": decoding, "first_sec": times[0][0]}


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    video = result["video"]
    lines = [
        f"{result['num_spans']} spans of a video of {video['seconds']} s, "
        f"{video['size'][0]}×{video['size'][1]}, key frames {video['gop']} apart; CPU time a span, ms",
        f"{'':<24}{'opening':>12}{'opening':>12}{'first of a':>12}{'decoding':>12}{'share':>10}",
        f"{'':<24}{'no index':>12}{'with index':>12}{'process':>12}",
    ]
    for row in result["rows"]:
        keys = ("without_sec", "opening_sec", "first_sec", "decoding_sec")
        cells = "".join(f"{1000 * row[key]:>12.2f}" for key in keys)
        name = f"{row['container']}, {row['clip']}"
        lines.append(f"{name:<24}{cells}{100 * row['share']:>8.2f} %")
    return "\n".join(lines)
