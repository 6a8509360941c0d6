"""Predicts the classes of videos: python tools/predict.py -i video.mp4 --model_file inference/TSM_motion."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["predict"].start

if __name__ == "__main__":
    sys.exit(main())
