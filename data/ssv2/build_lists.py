"""Writes the lists of Something-Something V2: python data/ssv2/build_lists.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a clone, installed or not

from paddlevideo_fast.apps.data.command import main

if __name__ == "__main__":
    sys.exit(main(["ssv2", *sys.argv[1:]]))
