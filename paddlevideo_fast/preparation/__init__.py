"""What data/*.py do: lists and their checks, prepared videos, frames, packed frames, and small data sets."""

from paddlevideo_fast.decode.opencv import check_opencv

check_opencv()  # the modules of this folder import cv2 without a check
