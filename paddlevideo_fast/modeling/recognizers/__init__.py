"""Whole networks: a backbone and a head, or several of these. Importing this package registers them."""

from paddlevideo_fast.modeling.recognizers.distillation import RecognizerDistillation
from paddlevideo_fast.modeling.recognizers.recognizer2d import Recognizer2D
from paddlevideo_fast.modeling.recognizers.recognizer3d import Recognizer3D

__all__ = ["Recognizer2D", "Recognizer3D", "RecognizerDistillation"]
