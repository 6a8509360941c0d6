"""paddlevideo_fast: train video action recognition models fast on PaddlePaddle, from a YAML file."""

# Paddle 2.6 exports symbols of its own zlib: PyAV then fails with "inconsistent stream state" unless Python's
# zlib was loaded before Paddle.
import zlib

from paddlevideo_fast.machine import keep_freed_memory, take_mkl_path

# before anything computes with Paddle, in every process
take_mkl_path()
keep_freed_memory()

__version__ = "0.1.0"
