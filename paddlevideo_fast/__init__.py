"""paddlevideo_fast: train video action recognition models fast on PaddlePaddle, from a YAML file."""

# Paddle 2.6 exports symbols of its own zlib: PyAV then fails with "inconsistent stream state" unless Python's
# zlib was loaded before Paddle.
import zlib

__version__ = "0.1.0"
