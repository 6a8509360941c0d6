"""Exports a trained network: python tools/export_model.py -c CONFIG -p best.pdparams -o inference."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.paddlex import export as main

if __name__ == "__main__":
    sys.exit(main())
