"""Converts weights of another toolkit for the network of a config, and reports what became of every tensor.

Example:
    python tools/convert_weights.py --from mmaction2 --src tsm_r50.pth --to tsm_r50.pdparams
        -c configs/recognition/tsm/tsm_k400_frames.yaml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import add_config_arguments, quiet_import, run_command
from paddlevideo_fast.config.load import load_config

# the keys of deploy.converters.CONVERTERS, known before Paddle is imported
KINDS = ("mit-tsm", "mmaction2", "pyslowfast", "pytorchvideo", "torchvision", "paddlevideo")


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="tools/convert_weights.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", required=True, choices=KINDS, dest="kind", help="whose weights they are")
    parser.add_argument(
        "--src", required=True, help="the file: .pth, .pyth, .pt, .safetensors, .pkl, .pdparams"
    )
    parser.add_argument("--to", required=True, help="the .pdparams to write")
    parser.add_argument(
        "--partial", action="store_true", help="write what fits, even where something is missing or left over"
    )
    add_config_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Converts; 2: wrong input, told in one message."""
    return run_command(_run, parse_args(argv))


def _run(args: argparse.Namespace) -> None:
    with quiet_import():
        from paddlevideo_fast.deploy.convert import convert_file
        from paddlevideo_fast.modeling import build_model
    model = build_model(load_config(args.config, args.override)["MODEL"], load_pretrained=False)
    result = convert_file(args.kind, args.src, model, args.to, args.partial)
    print(result.table())
    for line in result.differences:
        print(line)
    print(f"{result.summary()}; written to {args.to}")


if __name__ == "__main__":
    sys.exit(main())
