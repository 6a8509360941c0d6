"""PaddleVideo's transforms, by its names and arguments.

Geometric ones compose into one `ClipGeometry`; those that change pixels work on the small clip that it
renders; the rest only describe what the device does.
"""

from paddlevideo_fast.loader.transforms.augment import RandAugment, RandomErasing
from paddlevideo_fast.loader.transforms.color import (
    ColorJitter,
    Image2Array,
    Normalization,
    PackOutput,
    RandomBrightness,
    RandomGamma,
    RandomHue,
    RandomSaturation,
)
from paddlevideo_fast.loader.transforms.crop import (
    CenterCrop,
    GroupFullResSample,
    GroupResize,
    JitterScale,
    MultiCenterCrop,
    MultiCrop,
    MultiScaleCrop,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Scale,
    TenCrop,
    UniformCrop,
)
from paddlevideo_fast.loader.transforms.geometry import ClipGeometry, Descriptive, Geometric, Pixelwise
from paddlevideo_fast.loader.transforms.resample import Resample, View
