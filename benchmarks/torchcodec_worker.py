"""Reads frames with torchcodec for other benchmarks, in an environment without the toolkit.

For each line on stdin, {"path": FILE, "reads": [[POSITION, ...], ...]} with positions from 0 to 1 in the
video, it prints a line: {"announced": NUMBER OF FRAMES, "reads": [[[SHAPE, BASE64 OF PIXELS], ...], ...],
"seconds": CPU TIME}; null stands for what torchcodec refuses. Positions that are integers are frame numbers.
With "box": [LEFT, TOP, WIDTH, HEIGHT] and "size", it gives this part of each frame, resized to a square. The
first line is {"package": NAME, "version": VERSION}. Where torch is not installed, torchcodec is paddlecodec.
"""

import base64
import importlib.util
import json
import os
import sys
import time

import cv2

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what packages print is no answer
PACKAGE = "torchcodec"
if importlib.util.find_spec("torch") is None:
    import paddle

    PACKAGE = "paddlecodec"

    paddle.enable_compat(scope={"torchcodec"})

import torchcodec  # noqa: E402
from torchcodec.decoders import VideoDecoder  # noqa: E402


def answer(path, reads, box=None, size=None):
    """What torchcodec gives for the reads."""
    began = time.process_time()
    try:
        decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1)
        announced = len(decoder)
    except Exception as error:  # RuntimeError, ValueError and others
        if "libtorchcodec" in str(error):  # it finds no FFmpeg
            raise
        return {"announced": None, "reads": []}
    found = [_read(decoder, announced, positions, box, size) for positions in reads]
    seconds = time.process_time() - began
    return {
        "announced": announced,
        "reads": [frames and _texts(frames) for frames in found],
        "seconds": seconds,
    }


def _read(decoder, announced, positions, box, size):
    indices = [at if isinstance(at, int) else int(at * announced) for at in positions]
    try:
        frames = list(decoder.get_frames_at(indices).data.numpy())
    except Exception:
        return None
    if box is None:
        return frames
    left, top, width, height = box
    return [cv2.resize(frame[top : top + height, left : left + width], (size, size)) for frame in frames]


def _texts(frames):
    return [[list(frame.shape), base64.b64encode(frame.tobytes()).decode("ascii")] for frame in frames]


if __name__ == "__main__":
    cv2.setNumThreads(0)
    answer(os.devnull, [])
    print(json.dumps({"package": PACKAGE, "version": torchcodec.__version__}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=ANSWERS, flush=True)
