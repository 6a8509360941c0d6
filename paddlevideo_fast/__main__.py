"""`python -m paddlevideo_fast`: the command `paddlevideo-fast`."""

import sys

if not __package__:  # Paddle's launcher starts this file by its path
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from paddlevideo_fast.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
