"""Converts weights: python tools/convert_weights.py CONFIG --from mmaction2 --src A --to B."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["convert"].start

if __name__ == "__main__":
    sys.exit(main())
