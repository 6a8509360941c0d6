"""Makes a small data set of motions: python data/make_motion_dataset.py --output data/motion."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.preparation.motion import make
from paddlevideo_fast.preparation.run import run_main

if __name__ == "__main__":
    sys.exit(run_main(make))
