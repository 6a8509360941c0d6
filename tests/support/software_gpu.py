"""The decoder of a GPU as the reader "nvdec" sees it, in software: pictures come as NV12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from av.video.reformatter import ColorRange

from paddlevideo_fast.decode.container import open_container
from paddlevideo_fast.decode.source import VideoSource


class SoftwareGpu:
    """A codec context of PyAV whose pictures are NV12, as NVDEC gives them.

    Args:
        codec: the context, which decodes in software.
        spoil: changes what the decoder gives for a packet; may raise.

    Attributes:
        num_pictures: decoded so far, by all decoders.
        num_opened: decoders so far.
    """

    num_pictures = 0
    num_opened = 0

    def __init__(self, codec: Any, spoil: Callable[[list[Any]], list[Any]] | None = None) -> None:
        self.__dict__.update(_codec=codec, _spoil=spoil or list)
        SoftwareGpu.num_opened += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._codec, name, value)

    def decode(self, packet: Any = None) -> list[Any]:
        """The pictures of a packet."""
        pictures = self._spoil([_nv12(picture) for picture in self._codec.decode(packet)])
        SoftwareGpu.num_pictures += len(pictures)
        return pictures


def _nv12(picture: Any) -> Any:
    """A picture with its two chroma planes in one; the values stay."""
    tag = int(picture.color_range)
    is_full = tag == int(ColorRange.JPEG)
    same = {"src_color_range": tag, "dst_color_range": tag} if is_full else {}
    return picture.reformat(format="nv12", threads=1, **same)


def open_in_software(source: VideoSource, spoil: Callable[[list[Any]], list[Any]] | None = None) -> Any:
    """Takes the place of `nvdec.open_on_gpu`."""
    container, stream = open_container(source)
    source.release()
    container.close()
    return SoftwareGpu(stream.codec_context, spoil)
