"""Measures parts of the toolkit against a named baseline: python tools/benchmark.py shift."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import quiet_import, set_threads


def main() -> int:
    """Parses the command line and runs one benchmark."""
    set_threads(None)
    with quiet_import():
        from paddlevideo_fast.bench import shift, trainer
    parser = argparse.ArgumentParser(prog="tools/benchmark.py", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for module in (shift, trainer):
        assert module.__doc__ is not None
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=module.__doc__, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.main)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
