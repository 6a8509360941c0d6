"""Reads videos with the decoder of an NVIDIA GPU: the frames of the default reader, found by its index."""

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple

import av
import numpy as np
from av.codec.hwaccel import HWAccel
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode.colour import ONE_THREAD
from paddlevideo_fast.decode.container import LENIENT, PYAV, VIDEOS_ONLY, FileForLibav, explain, video_stream
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.source import Source, VideoSource
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.registry import READERS

# Their standards say each bit of a picture, and FFmpeg's own decoders hand their pictures to the GPU.
_CODECS = ("h264", "hevc", "vp9")
_PIXELS = ("yuv420p", "yuvj420p")  # of 8 bits; their chroma planes are one plane on a GPU
_ON_GPU = ("cuda", "nv12")
# The context that all of a process shares; FFmpeg refuses it where Paddle has made it, with flags of its own.
_CONTEXTS = ({"primary_ctx": "1"}, {"primary_ctx": "0"})
_OLDEST_PYAV = 18
_MAX_IDLE = 4  # decoders; each holds memory of the GPU


class _Format(NamedTuple):
    """What videos have in common that one decoder may decode in turn."""

    codec: str
    pixels: str
    width: int
    height: int
    aspect: Any
    header: bytes

    @classmethod
    def of(cls, codec: Any) -> "_Format":
        pixels, aspect = codec.pix_fmt or "", codec.sample_aspect_ratio
        return cls(codec.name, pixels, codec.width, codec.height, aspect, bytes(codec.extradata or b""))

    def __str__(self) -> str:
        return f"{self.codec} with {self.width}×{self.height} pixels ({self.pixels})"


_idle: LRUCache[Any] = LRUCache(_MAX_IDLE)  # decoders on the GPU, by process and format
_refused: dict[_Format, str] = {}  # formats that the GPU does not decode, with the reason


@READERS.register("nvdec")
class NvdecReader(PyAVReader):
    """Reads frames as `PyAVReader` does, and lets NVDEC decode them, through PyAV.

    `PyAVReader` finds the frames, chooses the packets and converts to RGB. Only the frames that are read
    leave the GPU. A decoder serves further videos of the same format. The first frame of each format is
    decoded on both, and compared; where the two differ, and where the GPU does not decode a video,
    `PyAVReader` does, and the log says so once.

    A GPU shows damage inside a picture as a picture. So `verify` decodes in software.

    Args:
        source: as for `PyAVReader`.

    Raises:
        PaddleVideoFastError: PyAV is too old, or this process can use no GPU.
        VideoDecodeError: as `PyAVReader`.
    """

    _on_gpu: Any = None

    def __init__(self, source: Source) -> None:
        if PYAV < _OLDEST_PYAV:
            raise PaddleVideoFastError(
                f"backend 'nvdec' needs PyAV {_OLDEST_PYAV} or newer, found {av.__version__}, which loses "
                f"the tags of colours on the way from the GPU: type  pip install 'av>={_OLDEST_PYAV}'"
            )
        super().__init__(source)
        self._to_planes = VideoReformatter()
        self._software = self._decoder._codec
        self._format = _Format.of(self._software)
        try:
            reason = self._open_on_gpu()
        except BaseException:
            self.close()
            raise
        if reason:
            self._use_software()
            warn_once(get_logger(), f"backend nvdec: {reason}; such videos are decoded in software")

    def _open_on_gpu(self) -> str:
        """Takes a decoder on the GPU; returns the reason why the video needs the one in software, or ""."""
        decoder, form = self._decoder, self._format
        if form.codec not in _CODECS:
            return f"{form.codec} is not decoded on a GPU"
        if form.pixels not in _PIXELS:
            return f"{form.codec} is decoded on a GPU with 8 bits and 4:2:0 only, not as {form.pixels}"
        if not decoder._is_constant:
            return "the headers change within a video"
        if form in _refused:
            return _refused[form]
        on_gpu = _idle.pop((os.getpid(), form))
        if on_gpu is None:
            expected = self._first_frame()
            if expected is None:
                return "the first frame does not decode"
            on_gpu = decoder._codec = open_on_gpu(decoder._source)
            frame = self._first_frame()
            if frame is None or not np.array_equal(frame, expected):
                cause = f" ({decoder.damage})" if decoder.damage else ""
                _refused[form] = f"the GPU does not decode {form} as software does{cause}"
                decoder.damage = ""  # the GPU's, not the file's
                return _refused[form]
        decoder._codec = self._on_gpu = on_gpu
        return ""

    def _first_frame(self) -> np.ndarray | None:
        """The first frame; None where it does not decode."""
        try:
            for index, picture in self._search([0], skips=True):
                return np.asarray(self.convert(index, picture))
        except VideoDecodeError:
            pass
        return None

    def _search(self, wanted: Iterable[int], skips: bool) -> Iterator[tuple[int, Any]]:
        for index, picture in super()._search(wanted, skips):
            if picture.format.name in _ON_GPU:
                picture = self._to_planes.reformat(picture, format=_PIXELS[0], **ONE_THREAD)
            yield index, picture

    def _use_software(self) -> None:
        self._decoder._codec, self._on_gpu = self._software, None

    def verify(self) -> None:
        """See `VideoReader`."""
        self._require_open()
        self._use_software()
        super().verify()

    def close(self) -> None:
        """See `VideoReader`."""
        if self._on_gpu is not None and not (self._closed or self._decoder.damage):
            _idle.put((os.getpid(), self._format), self._on_gpu)
        super().close()


def open_on_gpu(source: VideoSource) -> Any:
    """The decoder of a video on the GPU, as PyAV opens it; pictures stay there until they are reformatted.

    Raises:
        PaddleVideoFastError: this process can use no GPU.
    """
    paddle = sys.modules.get("paddle")  # where it computes, the same GPU decodes
    number = gpu_number(paddle.get_device()) if paddle else None
    device = None if number is None else str(number)
    for options in _CONTEXTS:
        opened = source.open()
        if hasattr(opened, "read"):
            opened = FileForLibav(opened, source.name)
        gpu = HWAccel("cuda", device, allow_software_fallback=False, options=options, is_hw_owned=True)
        try:
            container = av.open(opened, container_options=VIDEOS_ONLY, hwaccel=gpu, **LENIENT)
        except (av.FFmpegError, RuntimeError) as error:
            failure: Exception = error
            continue
        codec = video_stream(source, container).codec_context
        container.close()
        return codec
    is_fork = isinstance(multiprocessing.current_process(), ForkProcess)
    if is_fork and isinstance(failure, (av.error.ExternalError, av.error.UnknownError)):
        raise PaddleVideoFastError(
            f"backend 'nvdec': a loader worker cannot use the GPU ({explain(failure)}), because it is a fork "
            "of a process that uses it: set num_workers: 0, or choose backend 'pyav'"
        ) from failure
    raise PaddleVideoFastError(
        f"backend 'nvdec' needs an NVIDIA GPU with its driver, and PyAV can use none ({explain(failure)}): "
        "choose backend 'pyav'"
    ) from failure
