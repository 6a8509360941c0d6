"""Renders clips whose class is in the motion alone.

A textured sprite moves over a textured background. Its state has four parts: x, y, size (log2 of the scale)
and angle. Each class moves one part up or down at constant speed; the other three stand still. So that no
single frame tells the class, every part of every clip is drawn alike:

    value(t) = middle + sweep * phase(t)         middle, sweep: drawn the same way for all classes
    phase(t) = (t - (T-1)/2) / (T-1)             the moving part: from -1/2 to 1/2, or back
    phase(t) = that of one random time           a part that stands still

At a random time, each part of each class then has the same distribution, independent of the other parts, and
a clip of one class played backwards is a clip of its opposite. Texture, shape and background are drawn
without the class.
"""

from __future__ import annotations

import io
from typing import Dict, Sequence, Tuple

import av
import cv2
import numpy as np

# class -> (part of the state, direction). y points down, so a rising angle turns to the right.
CLASSES: Dict[str, Tuple[int, int]] = {
    "left": (0, -1),
    "right": (0, 1),
    "up": (1, -1),
    "down": (1, 1),
    "grow": (2, 1),
    "shrink": (2, -1),
    "turn_left": (3, -1),
    "turn_right": (3, 1),
}

# Half width of the range of `middle`, then least and greatest sweep. x and y in picture widths from the
# centre, size in octaves, angle in radians.
_MIDDLE = np.array([0.10, 0.10, 0.2, np.pi])
_SWEEP_MIN = np.array([0.60, 0.60, 1.2, 2.5])
_SWEEP_MAX = np.array([0.78, 0.78, 1.7, 4.0])

_SPRITE_SCALE = 0.66  # the sprite's side in picture widths at size 0


def draw_states(name: str, num_frames: int, rng: np.random.Generator) -> np.ndarray:
    """The sprite's state over a clip of class `name`.

    Returns:
        float64 [T, 4]: x, y, size, angle.
    """
    phases = np.arange(num_frames) / max(num_frames - 1, 1) - 0.5
    middle = rng.uniform(-_MIDDLE, _MIDDLE)
    sweep = rng.uniform(_SWEEP_MIN, _SWEEP_MAX)
    still = rng.choice(phases, 4)
    part, direction = CLASSES[name]
    states = np.tile(middle + sweep * still, (num_frames, 1))
    states[:, part] = middle[part] + sweep[part] * direction * phases
    return states


def render_clip(name: str, num_frames: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """One clip of class `name`: uint8 [T, size, size, 3], RGB."""
    states = draw_states(name, num_frames, rng)
    background = _texture(size, rng, contrast=0.4)
    side = 64
    sprite = np.dstack([_texture(side, rng, contrast=1.4), np.ones((side, side), np.float32)])
    sprite *= _blob(side, rng)[..., None]  # alpha is in the colours already, so edges blend without a halo
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for frame, (x, y, octaves, angle) in zip(frames, states):
        scale = _SPRITE_SCALE * size / side * 2.0**octaves
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        middle = (side - 1) / 2
        centre_x, centre_y = (0.5 + x) * size - 0.5, (0.5 + y) * size - 0.5
        matrix = np.array(
            [
                [cos, -sin, centre_x - (cos - sin) * middle],
                [sin, cos, centre_y - (sin + cos) * middle],
            ]
        )
        layer = cv2.warpAffine(sprite, matrix, (size, size), flags=cv2.INTER_LINEAR)
        picture = background * (1.0 - layer[..., 3:]) + layer[..., :3]
        np.clip(picture, 0, 255, out=picture)
        frame[:] = picture
    return frames


def _texture(side: int, rng: np.random.Generator, contrast: float) -> np.ndarray:
    """Smooth colour noise of three octaves around a random colour: float32 [side, side, 3] in 0 to 255."""
    texture = np.empty((side, side, 3), np.float32)
    texture[:] = rng.uniform(60, 196, 3)
    for cells, weight in ((3, 34.0), (7, 26.0), (15, 14.0)):
        grid = rng.standard_normal((cells, cells, 3), np.float32) * np.float32(contrast * weight)
        texture += cv2.resize(grid, (side, side), interpolation=cv2.INTER_LINEAR)
    return np.clip(texture, 0, 255, out=texture)


def _blob(side: int, rng: np.random.Generator) -> np.ndarray:
    """A star-shaped mask without symmetry: float32 [side, side] in 0 to 1."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    radius = np.ones_like(angles)
    for wave in (1, 2, 3):
        radius += rng.uniform(0.05, 0.22) * np.cos(wave * angles + rng.uniform(0, 2 * np.pi))
    radius *= 0.48 * side / radius.max()
    corners = np.stack([np.cos(angles), np.sin(angles)], 1) * radius[:, None] + (side - 1) / 2
    mask = np.zeros((side, side), np.uint8)
    cv2.fillPoly(mask, [np.round(corners * 16).astype(np.int32)], 255, lineType=cv2.LINE_AA, shift=4)
    return mask.astype(np.float32) / 255


def encode_h264(frames: np.ndarray, fps: int = 24, gop: int = 8, crf: int = 23) -> bytes:
    """An MP4 file of uint8 [T, H, W, 3] RGB frames; quick to write and to read, the same bytes each time."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4", options={"fflags": "bitexact"}) as container:
        options = {
            "crf": str(crf),
            "preset": "ultrafast",
            "tune": "fastdecode",
            "x264-params": "log-level=-1",
        }
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def make_clip(name: str, num_frames: int, size: int, key: Sequence[int]) -> bytes:
    """The MP4 file of one clip; `key` (seed, split, number) decides everything that is random."""
    return encode_h264(render_clip(name, num_frames, size, np.random.default_rng(list(key))))
