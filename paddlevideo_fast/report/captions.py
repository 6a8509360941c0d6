"""Text on frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_LINES_A_SIDE = 14  # of text, in the short side of a frame
_LEAST_HEIGHT_PX = 9
_SHADE = 0.35  # what the box leaves of the picture behind the text


class CaptionPainter:
    """Writes one line into the upper left corner, white on a dark box.

    Args:
        font_file: the font.
        width: of the frames, in pixels.
        height: of the frames, in pixels.
    """

    def __init__(self, font_file: Path, width: int, height: int) -> None:
        self._font_file = str(font_file)
        self._width = width
        self._text_px = max(_LEAST_HEIGHT_PX, min(width, height) // _LINES_A_SIDE)
        self._text = ""
        self._opacity = np.zeros((0, 0, 1), np.float32)

    def draw(self, frame: np.ndarray, text: str) -> None:
        """Changes a frame, uint8 [H, W, 3], in place. A long text is made smaller, then cut."""
        if text != self._text:
            self._text, self._opacity = text, self._render(text)
        height, width = self._opacity.shape[:2]
        box = frame[:height, :width]
        opacity = self._opacity[: box.shape[0]]
        box[:] = _SHADE * box * (1 - opacity) + 255 * opacity

    def _render(self, text: str) -> np.ndarray:
        """Float32 [h, w, 1] from 0 to 1: the text in a box of that size, no wider than a frame."""
        margin = self._text_px // 2
        room = self._width - 2 * margin
        font = ImageFont.truetype(self._font_file, self._text_px)
        if font.getlength(text) > room:
            smaller_px = max(_LEAST_HEIGHT_PX, int(self._text_px * room / font.getlength(text)))
            font = ImageFont.truetype(self._font_file, smaller_px)
        if font.getlength(text) > room:
            length = len(text)
            while length and font.getlength(text[:length] + "…") > room:
                length -= 1
            text = text[:length] + "…"
        ascent, descent = font.getmetrics()
        size = min(self._width, int(font.getlength(text)) + 2 * margin), ascent + descent + margin
        canvas = Image.new("L", size)
        ImageDraw.Draw(canvas).text((margin, margin // 2), text, fill=255, font=font)
        return np.asarray(canvas, np.float32)[..., None] / 255
