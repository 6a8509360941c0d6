"""Trains or tests, as users of PaddleVideo and PaddleX start it: python main.py --validate -c CONFIG."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # from any folder, installed or not

from paddlevideo_fast.apps.paddlex import main

if __name__ == "__main__":
    sys.exit(main())
