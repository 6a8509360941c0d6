"""`python -m paddlevideo_fast.cli`: the same as `paddlevideo-fast train`."""

import sys

from paddlevideo_fast.cli import main

if __name__ == "__main__":
    sys.exit(main())
