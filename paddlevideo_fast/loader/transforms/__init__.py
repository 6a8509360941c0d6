"""PaddleVideo's transforms, by its names and arguments.

Geometric ones compose into one `ClipGeometry`; those that change pixels work on the small clip that it
renders; the rest only describe what the device does. Importing this package registers them.
"""

from paddlevideo_fast.loader.transforms import color, crop
from paddlevideo_fast.loader.transforms.geometry import ClipGeometry, Geometric, Pixelwise
