"""paddlevideo_fast: train video action recognition models fast on PaddlePaddle, from a YAML file."""

__version__ = "0.1.0"
