"""Extracts the frames of videos: python data/extract_rawframes.py --root videos --output rawframes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.preparation.frames import extract
from paddlevideo_fast.preparation.run import run_main

if __name__ == "__main__":
    sys.exit(run_main(extract))
