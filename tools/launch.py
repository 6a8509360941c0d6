"""Starts the processes of a run: python tools/launch.py --nproc_per_node 2 tools/main.py CONFIG."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["launch"].start

if __name__ == "__main__":
    sys.exit(main())
