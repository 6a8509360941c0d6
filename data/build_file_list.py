"""Writes lists of a data set of your own: python data/build_file_list.py --root videos --kind video."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.data.command import main

if __name__ == "__main__":
    sys.exit(main(["list", *sys.argv[1:]]))
