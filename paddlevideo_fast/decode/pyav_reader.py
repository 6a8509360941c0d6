"""The default backend: exact frames through PyAV, decoding no more than they need.

All packets are demuxed once (cheap), which gives the frame index. For the frames asked for, only the groups
of pictures that hold them are decoded, each up to the last frame wanted, and within them pictures that are
neither wanted nor referred to are skipped.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode.container import demux, explain, open_container
from paddlevideo_fast.decode.packets import build_index
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import VideoDecodeError

# PyAV 17 began to convert colours on all cores; other workers need them.
_ONE_THREAD: Dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}

# Where "non-reference" is exact in the bitstream. HEVC says it per temporal layer only.
_SKIPS_NON_REFERENCE = frozenset({"h264", "mpeg4"})


class PyAVReader(VideoReader):
    """Reads frames exactly as decoding the whole file in sequence would give them.

    Args:
        path: a video file.

    Raises:
        VideoDecodeError: it is not a video, or cut off, or it must be decoded in sequence and that fails.
    """

    def __init__(self, path: str) -> None:
        self.path = str(path)
        self._container, stream = open_container(self.path)
        # PyAV 19 keeps one for all frames, with threads of which a forked worker has none: it waits for ever.
        self._reformatter = VideoReformatter()
        try:
            self._codec = stream.codec_context
            self.avg_fps = float(stream.average_rate or stream.guessed_rate or 0.0)
            self._packets = demux(self.path, self._container, stream)
            self._index = build_index(self._packets, self._codec)
            if self._index is not None:
                self.num_frames = len(self._index.pts)
            else:
                self.num_frames = sum(1 for _ in self._in_sequence())
            if self.num_frames == 0:
                raise VideoDecodeError(self.path, "no frame of it decodes")
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[np.ndarray]:
        """See `VideoReader`."""
        self._require_open()
        shown = None if self._index is None else set(self._index.pts)
        count = 0
        for frame in self._in_sequence():
            if shown is None or frame.pts in shown:
                count += 1
                yield self._to_rgb(frame)
        if count < self.num_frames:
            raise VideoDecodeError(self.path, f"damaged: {count} of {self.num_frames} frames decode")

    def close(self) -> None:
        """See `VideoReader`."""
        super().close()
        self._packets = []
        self._container.close()

    def _decode(self, wanted: List[int]) -> Dict[int, np.ndarray]:
        if self._index is None:
            return self._counted(wanted)
        pts = [self._index.pts[index] for index in wanted]
        frames = self._by_timestamp(pts, self._index.spans(pts))
        if len(frames) < len(pts):
            # A key frame was no clean point to enter (intra refresh): from the beginning, skipping nothing.
            frames = self._by_timestamp(pts, [(0, len(self._packets))], skip=False)
        for index, value in zip(wanted, pts):
            if value not in frames:
                raise VideoDecodeError(self.path, f"frame {index} is damaged or missing")
        return {index: frames[value] for index, value in zip(wanted, pts)}

    def _by_timestamp(
        self, wanted: Sequence[int], spans: Sequence[Tuple[int, int]], skip: bool = True
    ) -> Dict[int, np.ndarray]:
        """Timestamp -> frame, for those of `wanted` that decoding `spans` delivers."""
        targets = set(wanted)
        can_skip = skip and self._codec.name in _SKIPS_NON_REFERENCE
        frames: Dict[int, np.ndarray] = {}
        for first, stop in spans:
            for frame in self._run(self._packets[first:stop], targets if can_skip else None):
                if frame.pts in targets:
                    frames[frame.pts] = self._to_rgb(frame)
                    if len(frames) == len(targets):
                        break
        return frames

    def _counted(self, wanted: List[int]) -> Dict[int, np.ndarray]:
        """The frames at places `wanted` of decoding in sequence."""
        targets = set(wanted)
        frames = {}
        for count, frame in enumerate(self._in_sequence()):
            if count in targets:
                frames[count] = self._to_rgb(frame)
                if count == wanted[-1]:
                    break
        return frames

    def _in_sequence(self) -> Iterator[Any]:
        return self._run(self._packets, None)

    def _run(self, packets: Sequence[Any], needed: Any) -> Iterator[Any]:
        """Decodes packets from a clean state to the last picture.

        Args:
            packets: in decoding order, beginning with a key packet.
            needed: timestamps; pictures that are not among them and that no other refers to are skipped.
                None decodes all.

        Raises:
            VideoDecodeError: a packet or a picture is damaged.
        """
        codec = self._codec
        try:
            codec.flush_buffers()
            for packet in packets:
                keep = needed is None or packet.is_keyframe or packet.pts in needed
                codec.skip_frame = "DEFAULT" if keep else "NONREF"
                yield from codec.decode(packet)
            yield from codec.decode(None)
        except (av.FFmpegError, ValueError, OSError) as error:
            raise VideoDecodeError(self.path, f"damaged or cut off: {explain(error)}") from error

    def _to_rgb(self, frame: Any) -> np.ndarray:
        if frame.is_corrupt:
            raise VideoDecodeError(self.path, f"the picture at timestamp {frame.pts} is damaged")
        picture = self._reformatter.reformat(frame, format="rgb24", **_ONE_THREAD).to_ndarray()
        quarter_turns = int(round(frame.rotation / 90)) % 4
        return np.ascontiguousarray(np.rot90(picture, quarter_turns)) if quarter_turns else picture
