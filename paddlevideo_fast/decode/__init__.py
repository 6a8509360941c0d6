"""From a file to exact frames. Knows nothing of training, and imports no Paddle."""
# ruff: noqa: E402

from paddlevideo_fast.decode.opencv import check_opencv

check_opencv()  # the modules below import cv2 without a check

# isort: split
from paddlevideo_fast.decode.backends import VIDEO_EXTENSIONS, FrameStore, check_video, open_video
from paddlevideo_fast.decode.image_folder import FrameFolderReader, open_frames
from paddlevideo_fast.decode.reader import OnCorrupt, Span, VideoReader
from paddlevideo_fast.decode.source import Source
from paddlevideo_fast.decode.stored_index import IndexStore
