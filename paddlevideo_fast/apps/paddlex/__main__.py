"""`python -m paddlevideo_fast.apps.paddlex -c CFG -o FOLDER`: export as PaddleX asks for it."""

import sys

from paddlevideo_fast.apps.paddlex.commands import export

if __name__ == "__main__":
    sys.exit(export())
