"""What each person of a video does: predictions along the tracks of a file, and a video that shows them."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from paddlevideo_fast.apps.predict.annotated import Caption, CaptionPainter, annotate
from paddlevideo_fast.apps.predict.predictions import letters_of, text_of
from paddlevideo_fast.apps.predict.predictor import Entry, Predictor, Windowing, entry_of
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report.output import make_folders, targets
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.sources.tracks.files import read_tracks
from paddlevideo_fast.sources.tracks.records import Track, Tracks
from paddlevideo_fast.sources.untrimmed.windowing import Window

_COLOURS = ((230, 60, 60), (60, 160, 240), (70, 190, 90), (240, 170, 40), (190, 90, 220), (40, 200, 200))
_LEAST_LINE_PX = 2
_LINES_A_SIDE = 150  # thickness of a box, in the short side of a frame


class _Shown(NamedTuple):
    """A piece of a track on the frames: the box of each, and texts from moments on."""

    track_id: int
    first: int
    boxes: np.ndarray
    starts_sec: list[float]
    texts: list[str]


def _windows(video: VideoReader, first: int, stop: int, windowing: Windowing) -> list[Window]:
    """The windows of frames `first` to `stop` - 1, in frames and seconds of the whole video."""
    start_sec = float(video.times_sec()[first])
    return [
        Window(one.first + first, one.stop + first, *(round(start_sec + sec, 6) for sec in one[2:]))
        for one in windowing.cut(VideoPart(video, first, stop))
    ]


class TrackedVideo:
    """A video and its track file.

    Args:
        predictor: makes the predictions.
        path: the video.
        file: the track file.

    Raises:
        AnnotationError: the track file is wrong.
    """

    def __init__(self, predictor: Predictor, path: str, file: str) -> None:
        self._predictor, self._path = predictor, path
        section = Tracks(**(predictor.recipe.settings.tracks or {}))
        self._tracks = {
            track_id: Track(rows, section, None, f"the track of id {track_id}", file)
            for track_id, rows in read_tracks(file).items()
        }
        self._letters = letters_of(predictor)
        self._shown: list[_Shown] = []

    def entries(self, windowing: Windowing, batch_size: int, top_k: int) -> Iterator[Entry]:
        """The entry of each id, see `entry_of`, with `id`; of an id with long gaps, of each of its pieces.

        An id that cannot be predicted has `error`, and the others go on.

        Raises:
            VideoDecodeError: the video cannot be opened.
        """
        with self._predictor.open(self._path) as video:
            for track_id, track in self._tracks.items():
                begin: Entry = {"path": shown_url(self._path), "id": track_id}
                try:
                    for first, stop in track.pieces(video):
                        windows = _windows(video, first, stop, windowing)
                        progress = partial(tqdm, leave=False, disable=None, desc=f"id {track_id}")
                        prediction = self._predictor.predict_parts(
                            video, windows, batch_size, progress, track
                        )
                        texts = [
                            f"{track_id}: {text_of(one, self._letters.names)}" for one in prediction.parts
                        ]
                        boxes = track.boxes_at(first, stop, video)
                        self._shown.append(_Shown(track_id, first, boxes, prediction.edges_sec[:-1], texts))
                        yield {**begin, **entry_of(prediction, top_k), "path": begin["path"]}
                except PaddleVideoFastError as error:
                    yield {**begin, "error": str(error)}

    def target(self, folder: Path) -> Path:
        """Where the annotated video goes.

        Raises:
            PaddleVideoFastError: it would overwrite the video, or cannot be written.
        """
        source = as_path(self._path)
        (target,) = targets([source], source.parent, folder, ".mp4")
        make_folders([target])
        return target

    def annotate(self, target: Path) -> None:
        """Writes the video with the box and the classes of each id that was predicted.

        Raises:
            PaddleVideoFastError: a frame does not decode, or the file cannot be written.
        """
        with self._predictor.open(self._path) as video:
            times, source = video.times_sec(), np.array([video.width, video.height] * 2)
            painters: dict[int, CaptionPainter] = {}

            def draw(picture: np.ndarray, number: int) -> None:
                height, width = picture.shape[:2]
                line = max(_LEAST_LINE_PX, min(width, height) // _LINES_A_SIDE)
                for shown in self._shown:
                    if not 0 <= number - shown.first < len(shown.boxes):
                        continue
                    box = shown.boxes[number - shown.first] * np.array([width, height] * 2) / source
                    left, top, right, bottom = box.round().astype(int).tolist()
                    colour = _COLOURS[shown.track_id % len(_COLOURS)]
                    cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), colour, line)
                    painter = painters.setdefault(
                        shown.track_id, CaptionPainter(self._letters.font_file, width, height)
                    )
                    text = shown.texts[max(bisect_right(shown.starts_sec, times[number] + 1e-6) - 1, 0)]
                    painter.draw(picture[top:, left:], text)

            progress = partial(tqdm, total=video.num_frames, desc=target.name, leave=False, disable=None)
            annotate(video, [Caption(0.0, "")], self._letters.font_file, target, progress, draw)
