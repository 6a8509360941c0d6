"""The classic path from a file to a clip, as video toolkits have it: the baseline of the pipeline benchmark.

decord with its default threads reads whole frames, PIL crops and resizes them one after the other, and the
worker normalises to float32. Our samplers and transforms draw frames and geometry: both paths show the same.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms import ClipGeometry
from paddlevideo_fast.loader.transforms.geometry import Geometric


class PilFrames(ClipGeometry):
    """Runs each step on pixels at once, where `ClipGeometry` composes them.

    Args:
        images: the frames of a clip, of one size.
    """

    def __init__(self, images: Sequence[Image.Image]) -> None:
        super().__init__(*images[0].size)
        self.images = list(images)

    def resize(self, width: int, height: int) -> None:
        """See `ClipGeometry`."""
        super().resize(width, height)
        self.images = [image.resize((width, height), Image.Resampling.BILINEAR) for image in self.images]

    def split(self, places: Sequence[tuple[int, int, bool]], width: int, height: int) -> None:
        """See `ClipGeometry`; one place only."""
        ((left, top, _),) = places
        super().split(places, width, height)
        self.images = [image.crop((left, top, left + width, top + height)) for image in self.images]

    def flip(self) -> None:
        """See `ClipGeometry`."""
        super().flip()
        self.images = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in self.images]


def classic_clip(
    path: str,
    sample: FrameSampler,
    steps: Sequence[Geometric],
    normalization: tuple[Sequence[float], Sequence[float]],
    rng: np.random.Generator,
) -> np.ndarray:
    """One training clip.

    Args:
        path: of a video.
        sample: says which frames.
        steps: the geometry, in order.
        normalization: mean and standard deviation of the channels.
        rng: the only source of randomness.

    Returns:
        float32 [T, 3, H, W].
    """
    from decord import VideoReader

    reader = VideoReader(path)
    indices = sample.sample(len(reader), reader.get_avg_fps(), ClipRequest(0, 0), rng)
    frames = PilFrames([Image.fromarray(frame) for frame in reader.get_batch(indices.tolist()).asnumpy()])
    for step in steps:
        step.apply(frames, rng)
    pictures: list[np.ndarray] = [np.asarray(image) for image in frames.images]
    clip = np.stack(pictures).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(values, np.float32) for values in normalization)
    clip -= mean
    clip /= std
    return np.ascontiguousarray(clip.transpose(0, 3, 1, 2))
