"""The section `tracks` of a data set, whose list has boxes or track files beside its videos."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import cv2
import numpy as np

from paddlevideo_fast.config.types import Range, Size
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import AnnotationError, LoaderError, VideoDecodeError, shown
from paddlevideo_fast.io.urls import join
from paddlevideo_fast.loader.annotations import RecordSection, VideoRecord
from paddlevideo_fast.registry import RECORD_SECTIONS
from paddlevideo_fast.sources.tracks.files import TrackRows, check_box, read_tracks

if TYPE_CHECKING:
    from paddlevideo_fast.loader.dataset import ClipDataset

_MOST_IDS = 10  # in a message
_ALWAYS = TrackRows(np.zeros(1, np.int64), np.zeros((1, 4)), np.zeros(1, np.int64))


@RECORD_SECTIONS.register("tracks")
@dataclass(frozen=True)
class Tracks(RecordSection):
    """How clips follow the boxes and tracks of a list: `tracks` of DATASET.train, .valid and .test.

    Args:
        margin: what a clip shows around the box, on each side, as a share of the longer side of the largest
            box that the clip shows.
        max_gap: frames from one row of a track to the next, at most, between which the box moves evenly. A
            longer gap divides the track, and clips show its longest piece.
    """

    margin: Annotated[float, Range(0, 10)] = 0.2
    max_gap: Size = 30

    def records(self, dataset: ClipDataset) -> list[VideoRecord]:
        """The records; those with a box or a track are about the frames that have a box.

        Raises:
            LoaderError: no record has a box or a track.
            AnnotationError: the fields of a record, or its track file, are wrong.
        """
        if not any(record.more for record in dataset.records):
            raise LoaderError(
                f"{dataset.file_path}: tracks has no effect: no line has a box or a track; leave it out"
            )
        files: dict[str, dict[int, TrackRows]] = {}
        records = []
        for record in dataset.records:
            if record.more:
                try:
                    track = self._track_of(dict(record.more), dataset.data_prefix, files)
                except AnnotationError as error:
                    raise AnnotationError(f"{dataset.file_path}:{record.line}: {error}") from None
                record = replace(record, draw_part=track)
            records.append(record)
        return records

    def _track_of(
        self, fields: Mapping[str, Any], data_prefix: str | None, files: dict[str, dict[int, TrackRows]]
    ) -> Track:
        picture = _numbers("picture", fields["picture"], "width,height") if "picture" in fields else None
        if picture is not None and min(picture) <= 0:
            raise AnnotationError(f"picture is {shown(fields['picture'])}, expected sizes above 0")
        if "box" in fields:
            if other := [name for name in ("track", "track_id") if name in fields]:
                raise AnnotationError(f"has a box and a {other[0]}; keep one of the two")
            box = _numbers("box", fields["box"], "x1,y1,x2,y2")
            check_box(box)
            return Track(_ALWAYS._replace(boxes=np.array([box])), self, picture, "the box")
        if "track" not in fields:
            raise AnnotationError(f"has a {next(iter(fields))} and neither a box nor a track")
        path = join(data_prefix, str(fields["track"])) if data_prefix else str(fields["track"])
        if path not in files:
            files[path] = read_tracks(path)
        track_id = one_id(files[path], path, fields.get("track_id"))
        return Track(files[path][track_id], self, picture, f"the track of id {track_id}", path)


def one_id(tracks: Mapping[int, TrackRows], path: str, track_id: Any) -> int:
    """The id that is meant of a track file; None: the only one.

    Raises:
        AnnotationError: it is not in the file, or there are several.
    """
    ids = ", ".join(map(str, [*tracks][:_MOST_IDS])) + (", …" if len(tracks) > _MOST_IDS else "")
    if isinstance(track_id, str) and track_id.strip().isdecimal():  # a cell of a table
        track_id = int(track_id)
    if track_id is not None and (isinstance(track_id, bool) or not isinstance(track_id, int)):
        raise AnnotationError(f"track_id is {shown(track_id)}, expected an integer")
    if track_id is None and len(tracks) > 1:
        raise AnnotationError(f"{path} has the ids {ids}; say which one with track_id")
    if track_id is not None and track_id not in [*tracks]:
        raise AnnotationError(f"track_id {shown(track_id)} is not in {path}, which has the ids {ids}")
    return next(iter(tracks)) if track_id is None else int(track_id)


def _numbers(name: str, value: Any, form: str) -> tuple[float, ...]:
    """The numbers of a field: a list, or a text such as "10,20,110,220"."""
    parts = value if isinstance(value, list) else str(value).split(",")
    try:
        numbers = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != form.count(",") + 1 or not np.isfinite(numbers).all():
        raise AnnotationError(f"{name} is {shown(value)}, expected numbers {form}")
    return numbers


@dataclass(frozen=True, eq=False)
class Track:
    """Where one person or thing is in a video; gives the frames that show it.

    Args:
        rows: its boxes.
        section: says margin and gaps.
        picture: width and height in pixels of the frames that the boxes are of; None: of the video as it is
            shown.
        name: for messages.
        path: of the track file; "": the box is the same in all frames.
    """

    rows: TrackRows
    section: Tracks
    picture: Sequence[float] | None = None
    name: str = "the track"
    path: str = ""

    def __repr__(self) -> str:
        # is in the identity of a run: the boxes, and not where the file is
        content = zlib.crc32(self.rows.boxes.tobytes(), zlib.crc32(self.rows.frames.tobytes()))
        return f"Track({content:08x}, {bool(self.path)}, {self.section}, {self.picture})"

    def pieces(self, video: VideoReader) -> list[tuple[int, int]]:
        """The frames [first, stop) of each piece without a longer gap, of all of a video.

        Raises:
            VideoDecodeError: the track goes beyond the video.
        """
        frames = self.rows.frames
        if not self.path:
            return [(0, video.num_frames)]
        if frames[-1] >= video.num_frames:
            text = (
                f"{self.path}:{self.rows.lines[-1]}: frame {frames[-1]}, counted from 0, is beyond the video"
            )
            raise VideoDecodeError(video.path, f"{text}, which has {video.num_frames} frames")
        ends = np.flatnonzero(np.diff(frames) > self.section.max_gap)
        firsts = frames[[0, *(ends + 1)]].tolist()
        return list(zip(firsts, (frames[[*ends, -1]] + 1).tolist()))

    def __call__(self, video: VideoReader, rng: Any = None) -> TrackPart:
        """The longest piece of the track in a video, or in a part of one.

        Raises:
            VideoDecodeError: the track goes beyond the video, has no box in the part, or leaves the picture.
        """
        root: VideoReader = video
        offset = 0
        while isinstance(root, VideoPart):
            offset += root.first
            root = root.video
        pieces = [
            (max(first - offset, 0), min(stop - offset, video.num_frames))
            for first, stop in self.pieces(root)
        ]
        first, stop = max(pieces, key=lambda piece: piece[1] - piece[0])
        if first >= stop:
            text = f"{self.name} has no box in frames {offset} to {offset + video.num_frames - 1}"
            raise VideoDecodeError(video.path, text)
        return TrackPart(video, first, stop, self, first + offset)

    def boxes_at(self, first: int, stop: int, video: VideoReader) -> np.ndarray:
        """The box of each frame in pixels of the frames as they are read, cut at their edges: [N, 4].

        Raises:
            VideoDecodeError: a box lies outside the picture.
        """
        frames = np.arange(first, stop)
        boxes = np.stack([np.interp(frames, self.rows.frames, edge) for edge in self.rows.boxes.T], axis=1)
        width, height = self.picture or video.square_size
        size = np.array([video.width, video.height] * 2)
        boxes *= size / np.array([width, height] * 2)
        boxes = boxes.clip(0, size)
        outside = np.flatnonzero((boxes[:, 2:] <= boxes[:, :2]).any(axis=1))
        if len(outside):
            text = f"{self.name} lies outside the picture of {width:.10g}×{height:.10g} pixels"
            raise VideoDecodeError(video.path, f"{text} at frame {first + outside[0]}")
        return boxes


class TrackPart(VideoPart):
    """Frames of a video in which a track has boxes; clips of it show what is around the box.

    Args:
        video: as of `VideoPart`.
        first: likewise.
        stop: likewise.
        track: says the boxes.
        number: number of the frame `first` in the track.
    """

    def __init__(self, video: VideoReader, first: int, stop: int, track: Track, number: int) -> None:
        super().__init__(video, first, stop)
        self._margin = track.section.margin
        self._boxes = track.boxes_at(number, number + self.num_frames, video)

    def crops(self, frames: np.ndarray) -> BoxCrops:
        """See `VideoReader`."""
        return BoxCrops(self._boxes[frames], self._margin, self.square_size[0] / self.width)


class BoxCrops:
    """Squares of one size around the box of each frame of a clip.

    All squares of a clip are as large as its largest box, so the scale stays: a person who comes nearer
    grows, and a box that flickers does not zoom. The box is in the middle. Where a square reaches over the
    picture, the pixels at the edge of the picture are repeated. Squares begin at whole pixels, so that the
    frames are resampled once, by `Resample`.

    Args:
        boxes: float64 [T, 4], x1, y1, x2, y2, in pixels of the frames as they are read.
        margin: around the box, as a share of the side of the largest.
        pixel_aspect: width of a pixel over its height, as it is shown.
    """

    def __init__(self, boxes: np.ndarray, margin: float, pixel_aspect: float) -> None:
        sides = (boxes[:, 2:] - boxes[:, :2]) * (pixel_aspect, 1.0)
        side = float(sides.max()) * (1 + 2 * margin)
        self.width, self.height = max(2, round(side / pixel_aspect)), max(2, round(side))
        self.square_size = self.height, self.height
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        self._corners = np.floor(middles - np.array([self.width, self.height]) / 2 + 0.5).astype(int).tolist()

    def cut(self, frame: np.ndarray, slot: int) -> np.ndarray:
        """See `decode.reader.Crops`."""
        left, top = self._corners[slot]
        right, bottom = left + self.width, top + self.height
        height, width = frame.shape[:2]
        part = frame[max(top, 0) : bottom, max(left, 0) : right]
        over = (max(-top, 0), max(bottom - height, 0), max(-left, 0), max(right - width, 0))
        return cv2.copyMakeBorder(part, *over, cv2.BORDER_REPLICATE) if any(over) else part
