"""Exports a trained network for Paddle Inference, with settings for `paddlevideo-fast predict`.

--onnx also exports it for onnxruntime. Exported models are kept only if they give the network's logits.

Examples:
    paddlevideo-fast export output/my_set
    paddlevideo-fast export tsm_motion -w best.pdparams --output inference
"""

import argparse
import re

from paddlevideo_fast.cli.command import add_config_arguments, find_weights, load_for_run, print_result
from paddlevideo_fast.command_line import JSON, CommandParser, count

OPSET_VERSION = 13
_NEEDED = {
    **dict.fromkeys(("opset_version", "fp16", "int8"), "onnx"),
    **dict.fromkeys(("calibrate", "calibration_clips"), "int8"),
}


def build_script_parser() -> argparse.ArgumentParser:
    """The parser of tools/export_model.py: as PaddleVideo has it, -p means weights and -o the folder."""
    return build_parser(is_script=True)


def build_parser(is_script: bool = False) -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast export`."""
    parser = CommandParser("export", __doc__, _rules)
    parser._negative_number_matcher = re.compile(r"-1")  # no flag: --input_shape -1,-1,-1
    add_config_arguments(parser, names=["--override"] if is_script else ["-o", "--override"])
    parser.add_argument(
        *(["-p"] if is_script else []),
        *("-w", "--weights", "--pretrained_params"),
        help="a .pdparams file, the output folder of a run, or a name of published weights (see zoo) "
        "(default: of the newest run of the config)",
        was="" if is_script else "-p",
    )
    parser.add_argument(
        "--class_names", metavar="FILE", help="names of the classes, one a line, in the order of their labels"
    )
    parser.add_argument(
        *(["-o"] if is_script else []),
        *("--output", "--output_path"),
        default="inference",
        metavar="FOLDER",
        help="folder (default inference)",
    )
    parser.add_argument(
        "--save_name", metavar="NAME", rare=True, help="name of the files (default: model_name of the config)"
    )
    parser.add_argument(
        "--uint8",
        action="store_true",
        help="the model takes uint8 pixels and normalises them itself",
    )
    parser.add_argument(
        "--input_shape",
        type=_shape,
        metavar="T,H,W",
        rare=True,
        help="shape of the clips, -1 for an axis of any length (default: the shape that the pipeline gives)",
    )
    parser.add_argument(
        "--split",
        choices=("valid", "test"),
        default="valid",
        rare=True,
        help="predict reads videos as PIPELINE.valid or PIPELINE.test does, with its views (default valid)",
    )
    parser.add_argument(
        "--paddlex", action="store_true", help="write the folder that PaddleX's create_model runs"
    )
    parser.add_argument(
        "--program_format",
        was="--format",
        rare=True,
        choices=("json", "pdmodel"),
        help="of the model for Paddle: json of Paddle 3, or pdmodel, which Paddle 2 reads as well; "
        "default: as the installed Paddle writes it",
    )
    parser.add_argument(
        "--merge_tokens",
        type=count(0),
        metavar="N",
        rare=True,
        help="tokens that each layer of a VideoMAE merges, for a faster model",
    )
    parser.add_argument("--onnx", action="store_true", help="export to ONNX, too")
    parser.add_argument(
        "--fp16",
        action="store_true",
        help="the ONNX model computes in 16 bits; input and logits keep their types",
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="the ONNX model computes in int8: smaller, and on most CPUs faster; reads videos to calibrate",
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        rare=True,
        help="the videos for --int8, a list like that of DATASET.valid (default: that list)",
    )
    parser.add_argument(
        "--calibration_clips",
        type=count(1),
        metavar="N",
        rare=True,
        help="calibrate with N videos from all over the list, and compare on N others (default 128)",
    )
    parser.add_argument(
        "--opset_version",
        type=count(7),
        metavar="N",
        rare=True,
        help="ONNX opset version; a later one is taken if an operator needs it (default 13)",
    )
    parser.add_argument("--json", **JSON)
    return parser


def _rules(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for text in args.override:
        if "=" not in text:
            parser.error(f"-o {text}: is no KEY=VALUE; the output folder is  --output {text}")
    for name, other in _NEEDED.items():
        if getattr(args, name) and not getattr(args, other):
            parser.error(f"--{name}: has no effect without --{other}")
    if args.fp16 and args.int8:
        parser.error("--fp16: the ONNX model computes in int8; leave one of the two out")


def _shape(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not T,H,W, such as 8,224,224 or 8,-1,-1")
    return sizes


def run(args: argparse.Namespace) -> None:
    """Exports; 2: wrong input, or a program that does not give the network's logits, told in one message."""
    more = [] if args.merge_tokens is None else [f"merge_tokens={args.merge_tokens}"]
    cfg = load_for_run(args, [*args.override, *more])
    from paddlevideo_fast.apps.export.export import Calibration, ExportOptions, export_model
    from paddlevideo_fast.apps.export.paddlex_form import PaddleXFolder

    options = ExportOptions(
        input_dtype="uint8" if args.uint8 else "float32",
        input_shape=args.input_shape,
        split=args.split,
        class_names=args.class_names,
        program=args.program_format,
        paddlex=PaddleXFolder() if args.paddlex else None,
        onnx_opset=(args.opset_version or OPSET_VERSION) if args.onnx else None,
        onnx_fp16=args.fp16,
        int8=Calibration(args.calibrate, args.calibration_clips or 128) if args.int8 else None,
    )
    weights = find_weights(args.weights, cfg, args.config)
    files = export_model(cfg, weights, args.output, args.save_name, options)
    for file in files.all:
        print_result({"file": file}, args.json, "{file}".format_map)
