"""Converts weights of another toolkit for the network of a config, and reports what happened to every tensor.

Examples:
    paddlevideo-fast convert tsm_k400_frames --from mmaction2 --src tsm.pth --output_file x.pdparams
    paddlevideo-fast convert slowfast_4x16 --from pyslowfast --src slow.pkl --output_file x.pdparams
"""

import argparse

from paddlevideo_fast.cli.command import add_config_arguments, print_result, quiet_import
from paddlevideo_fast.command_line import JSON, CommandParser
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.locks import only_writer

# the keys of apps.convert.convert.CONVERTERS, known before Paddle is imported
KINDS = (
    *("mit-tsm", "mmaction2", "pyslowfast", "pytorchvideo", "torchvision", "efficientnet_lite"),
    *("huggingface", "videomae", "vjepa2", "hiera", "timesformer", "tokshift", "swin", "paddlevideo"),
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast convert`."""
    parser = CommandParser("convert", __doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "--from",
        required=True,
        choices=KINDS,
        dest="kind",
        metavar="TOOLKIT",
        help=f"of the weights: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--src",
        required=True,
        action="append",
        metavar="FILE",
        help="the file: .pth, .pyth, .pt, .safetensors, .pkl, .pdparams; give it again for a network whose "
        "parts are in several files",
    )
    parser.add_argument("--output_file", "--to", required=True, metavar="FILE", help="the .pdparams to write")
    parser.add_argument(
        "--partial",
        action="store_true",
        help="write the matching tensors, even if others are missing or left over",
    )
    parser.add_argument("--json", **JSON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Converts; 2: wrong input, told in one message."""
    with quiet_import():
        from paddlevideo_fast.apps.convert.convert import convert_file
        from paddlevideo_fast.modeling import build_model
    target = as_path(args.output_file)
    with only_writer(target.parent, target.name, given_by="--output_file"):
        model = build_model(load_config(args.config, args.override)["MODEL"], load_pretrained=False)
        result = convert_file(args.kind, args.src, model, target, args.partial)
    last = f"{result.summary()}; written to {args.output_file}"
    text = "\n".join([result.table(), *result.differences, *result.notes, last])
    print_result({"file": args.output_file, **result.report()}, args.json, lambda _: text)
