"""The program behind the shell scripts of this folder: python test_tipc/run.py ACTION TEXT MODE [DETAIL].

Exit codes: 0, all commands succeeded; 1, a command failed, and the commands that do not need it were run; 2,
wrong input; 128 + n, ended by signal n together with its commands.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.errors import EXIT_USER_ERROR, PaddleVideoFastError
from test_tipc.tipc.benchmark import run_benchmark
from test_tipc.tipc.commands import MODES
from test_tipc.tipc.pipeline import run_pipeline
from test_tipc.tipc.preparing import prepare
from test_tipc.tipc.text import TipcError, read_text

_BENCHMARK = "benchmark_train"
# action -> its script and what may follow the mode
_ACTIONS = {
    "prepare": ("prepare.sh", "case"),
    "train_infer": ("test_train_inference_python.sh", "gpu"),
    "benchmark": ("benchmark_train.sh", "case"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    action = words.pop(0)
    script, detail = _ACTIONS[action]
    parser = argparse.ArgumentParser(prog=f"bash test_tipc/{script}")
    parser.add_argument("text", type=Path, help="such as test_tipc/configs/TSM/train_infer_python.txt")
    parser.add_argument("mode", choices=[_BENCHMARK] if action == "benchmark" else MODES)
    parser.add_argument(
        "detail", nargs="?", metavar=detail, help="whole_infer: a GPU; benchmark_train: one case"
    )
    args = parser.parse_args(words)
    if args.detail and args.mode not in ("whole_infer", _BENCHMARK):
        parser.error(f"{args.mode} takes nothing more: {args.detail}")
    signal.signal(signal.SIGTERM, _end)
    try:
        if not Path("tools/main.py").is_file():
            raise TipcError(
                f"{Path.cwd()}: has no tools/main.py; start the script from the repository's root"
            )
        text = read_text(args.text)
        if action == "prepare":
            return prepare(text, args.mode)
        if args.mode == _BENCHMARK:
            return run_benchmark(text, args.detail)
        return run_pipeline(text, args.mode, args.detail)
    except PaddleVideoFastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except OSError as error:  # outputs that cannot be written
        print(f"Run failed - {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
