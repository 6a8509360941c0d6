"""No measurement: cuts real videos by time into clips of a set on which networks can train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2

from benchmarks.measuring import Positive, write_video
from paddlevideo_fast.decode import open_video

_HELD_OUT = 0.3  # the last share of each part of a video


def run(
    videos: Sequence[Path],
    *,
    output: Path,
    parts: Positive = 1,
    frames: Positive = 24,
    stride: Positive = 6,
    size: Positive = 64,
) -> dict[str, Any]:
    """Writes clips, train.list and valid.list. The class of a clip is its video, or its part of the video.

    Clips overlap, but no frame is in a training clip and in a held-out one.

    Args:
        videos: to cut.
        output: folder of clips and lists.
        parts: equal spans of a video that are classes of their own.
        frames: of a clip.
        stride: frames from one clip to the next.
        size: width and height of the clips in pixels.

    Returns:
        "classes", and "train" and "valid", numbers of clips.
    """
    output.mkdir(parents=True, exist_ok=True)
    lists: dict[str, list[str]] = {"train": [], "valid": []}
    for number, path in enumerate(videos):
        with open_video(str(path)) as video:
            pictures = [cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA) for frame in video]
        for part in range(parts):
            begin, end = (len(pictures) * at // parts for at in (part, part + 1))
            held_out = end - round((end - begin) * _HELD_OUT)
            for name, first, last in (("train", begin, held_out), ("valid", held_out, end)):
                for start in range(first, last - frames + 1, stride):
                    clip = f"{path.stem}_{start}.mp4"
                    write_video(output / clip, pictures[start : start + frames], options={"crf": "18"})
                    lists[name].append(f"{clip} {number * parts + part}")
    for name, lines in lists.items():
        (output / f"{name}.list").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {"classes": len(videos) * parts, **{name: len(lines) for name, lines in lists.items()}}
