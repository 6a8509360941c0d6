"""Clips as contact sheets."""

from __future__ import annotations

import cv2
import numpy as np

_NUM_FRAMES = 8


def contact_sheet(clip: np.ndarray, height_px: int = 96) -> np.ndarray:
    """Frames of a clip side by side, eight at most, equally far apart.

    Args:
        clip: uint8 [T, H, W, 3].
        height_px: of the sheet.

    Returns:
        uint8 [height_px, width, 3].
    """
    places = np.linspace(0, len(clip) - 1, min(len(clip), _NUM_FRAMES)).round().astype(int)
    width_px = max(1, round(clip.shape[2] * height_px / clip.shape[1]))
    method = cv2.INTER_AREA if height_px < clip.shape[1] else cv2.INTER_LINEAR
    frames = [cv2.resize(clip[place], (width_px, height_px), interpolation=method) for place in places]
    return np.concatenate(frames, axis=1)


def jpeg(picture: np.ndarray) -> bytes:
    """A JPEG of a picture, uint8 [H, W, 3], RGB."""
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return data.tobytes()
