"""Decodes everything that a list names: python data/check_videos.py --list train.list."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.data.command import main

if __name__ == "__main__":
    sys.exit(main(["check", *sys.argv[1:]]))
