"""Decodes everything that a list names: python data/check_videos.py --list train.list."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.preparation.lists import check
from paddlevideo_fast.preparation.run import run_main

if __name__ == "__main__":
    sys.exit(run_main(check))
