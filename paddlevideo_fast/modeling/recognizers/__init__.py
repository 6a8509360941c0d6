"""Whole networks: a backbone and a head. Importing this package registers them."""

from paddlevideo_fast.modeling.recognizers.recognizer2d import Recognizer2D

__all__ = ["Recognizer2D"]
