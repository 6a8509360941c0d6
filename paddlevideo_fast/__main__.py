"""`python -m paddlevideo_fast`, and the command `paddlevideo-fast`."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job of `nohup` ignores it
    # Ctrl-C ends the process at once until a command works: an import may lose a `KeyboardInterrupt`
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if not __package__:  # Paddle's launcher starts this file by its path
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from paddlevideo_fast.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
