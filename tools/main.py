"""Trains or tests: python tools/main.py tsm_motion."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["train"].start

if __name__ == "__main__":
    sys.exit(main())
