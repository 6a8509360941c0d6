"""What Paddle's launcher starts for each process of `train` and `test`: rank 0 prints results on stdout.

The launcher writes both streams of a process to one file, and prints that of rank 0 on its own stdout. This
is the stderr of `launch`, whose stdout all processes get as their stdin.
"""

import atexit
import gc
import os
import runpy
from pathlib import Path

if __name__ == "__main__":
    atexit.register(gc.freeze)  # else Python's last collections take 0.3 to 0.8 s after Ctrl-C
    if os.environ["PADDLE_TRAINER_ID"] == "0":
        os.dup2(0, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    runpy.run_path(str(Path(__file__).parents[2] / "__main__.py"), run_name="__main__")
