"""Makes a small data set of motions: python data/make_motion_dataset.py --output data/motion."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.data.command import main

if __name__ == "__main__":
    sys.exit(main(["motion", *sys.argv[1:]]))
