"""Writes the lists of UCF101: python data/ucf101/build_lists.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a clone, installed or not


from paddlevideo_fast.preparation.public_datasets import ucf101
from paddlevideo_fast.preparation.run import run_main

if __name__ == "__main__":
    sys.exit(run_main(ucf101))
