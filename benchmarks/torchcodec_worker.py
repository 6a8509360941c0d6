"""Reads frames with torchcodec for benchmarks/reader_trials.py, in an environment without the toolkit.

For each line on stdin, {"path": FILE, "reads": [[POSITION, ...], ...]} with positions from 0 to 1 in the
video, it prints a line: {"announced": NUMBER OF FRAMES, "reads": [[[SHAPE, BASE64 OF PIXELS], ...], ...]};
null stands for what torchcodec refuses. The first line is {"version": VERSION}.
"""

import base64
import json
import sys

import torchcodec
from torchcodec.decoders import VideoDecoder


def answer(path, reads):
    """What torchcodec gives for the reads."""
    try:
        decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1)
        announced = len(decoder)
    except Exception as error:  # RuntimeError, ValueError and others
        if "libtorchcodec" in str(error):  # it finds no FFmpeg
            raise
        return {"announced": None, "reads": []}
    return {"announced": announced, "reads": [_read(decoder, announced, positions) for positions in reads]}


def _read(decoder, announced, positions):
    try:
        frames = decoder.get_frames_at([int(position * announced) for position in positions]).data.numpy()
    except Exception:
        return None
    return [[list(frame.shape), base64.b64encode(frame.tobytes()).decode("ascii")] for frame in frames]


if __name__ == "__main__":
    answer(b"", [])
    print(json.dumps({"version": torchcodec.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)
