"""Work over many files: on processes, in shares of an array of jobs, or on a Dask cluster."""

from paddlevideo_fast.decode.opencv import check_opencv

check_opencv()  # the modules of this folder import cv2 without a check
