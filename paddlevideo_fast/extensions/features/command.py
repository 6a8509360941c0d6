"""Computes the features of a network's backbone for each clip of a config's training and validation data.

Examples:
    paddlevideo-fast features my_set -w weights.pdparams --output features
    paddlevideo-fast features my_set --output features --views 4 --dtype float16

A head is then trained on them in minutes, and its checkpoints hold the whole network:
    paddlevideo-fast train my_set -o features=features

It stores what the head takes: one feature for each clip, or one for each of its frames or tokens. It says how
much disk they need before it starts; --dtype float16 halves that. With --logits it stores the scores of the
whole network, for a student that learns from them.

After a stop, run the same command again: it computes what is missing. If the folder has features of other
weights, another list or another pipeline, it ends with an error. Exit code: 0, all features are
there; 1, some videos do not decode and are named; 2, wrong input.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, Literal

from paddlevideo_fast.cli.command import add_config_arguments, load_for_run, print_result
from paddlevideo_fast.command_line import DRY_RUN, JSON, CommandParser, add_options, count
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.jobs.dry_run import print_dry_run


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast features`."""
    parser = CommandParser("features", __doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "-w", "--weights", was="-p", help="weights of the network (default: `pretrained` of the backbone)"
    )
    parser.add_argument(
        "--output", type=as_path, required=True, metavar="FOLDER", help="folder of the features"
    )
    parser.add_argument(
        "--views",
        type=count(1),
        default=1,
        help="differently augmented copies of each training clip (default 1)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16"),
        default="float32",
        help="of the values on the disk; float16 takes half and rounds to three digits (default float32)",
    )
    parser.add_argument(
        "--logits",
        action="store_true",
        help="store the logits of the whole network, for distillation, in place of features",
    )
    add_options(parser, {"--dry_run": DRY_RUN, "--json": JSON})
    return parser


def run(args: argparse.Namespace) -> int:
    """Computes; 1: some videos do not decode; 2: wrong input, told in one message."""
    overrides = [*args.override, *([f"weights={json.dumps(args.weights)}"] if args.weights else [])]
    cfg = load_for_run(args, overrides)
    from paddlevideo_fast.extensions.features.compute import compute_features, dry_run

    what: Literal["features", "logits"] = "logits" if args.logits else "features"
    if args.dry_run:
        print_dry_run(dry_run(cfg, args.output, args.views, args.dtype, what), args.json)
        return 0
    parts = compute_features(cfg, args.output, args.views, sys.stderr.isatty(), args.dtype, what)
    for part in parts:
        index = part.index
        counts = {"num_rows": index.num_rows, "shape": index.shape, "num_failed": len(index.failed)}
        print_result({"folder": part.folder, "kind": what, **counts}, args.json, _as_text)
    return EXIT_FAILURES if any(part.index.failed for part in parts) else 0


def _as_text(part: Mapping[str, Any]) -> str:
    failed = f", {part['num_failed']} failed" if part["num_failed"] else ""
    return f"{part['folder']}: {part['num_rows']} {part['kind']} of {part['shape']}{failed}"
