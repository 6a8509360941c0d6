"""Re-encodes videos for training: python data/prepare_videos.py --list train.list --output prepared."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.data.command import main

if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
