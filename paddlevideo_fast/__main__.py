"""`python -m paddlevideo_fast`, and the command `paddlevideo-fast`."""

import signal
import sys

_HANDLES = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job of `nohup` ignores it
if _HANDLES:  # Ctrl-C ends the imports without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if not __package__:  # Paddle's launcher starts this file by its path
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from paddlevideo_fast.cli.commands import main  # noqa: E402

if _HANDLES:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
