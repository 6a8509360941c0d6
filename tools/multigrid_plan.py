"""Shows what a multigrid run will do: python tools/multigrid_plan.py CONFIG."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli.commands import COMMANDS

main = COMMANDS["plan"].start

if __name__ == "__main__":
    sys.exit(main())
