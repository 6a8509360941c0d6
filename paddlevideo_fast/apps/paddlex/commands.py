"""What PaddleX starts in a checkout: `main.py` to train and test, `tools/export_model.py` to export.

Both take any other config as well, and are then the commands that they are without PaddleX.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from paddlevideo_fast.apps.paddlex.translate import device_of, is_paddlex_config, load_paddlex_config
from paddlevideo_fast.cli import train
from paddlevideo_fast.cli.command import quiet_import, rank, run_command
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import setup_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Trains or tests a config of PaddleX, and any other as `paddlevideo-fast train` does.

    Returns:
        The exit code.
    """
    return run_command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    args = train.build_parser().parse_args(argv)
    return _train_or_test(args) if is_paddlex_config(args.config) else train.run(args)


def export(argv: Sequence[str] | None = None) -> int:
    """Exports a config of PaddleX, and any other as `paddlevideo-fast export` does.

    PaddleX gives no -p: the weights are those of Global.pretrained_model.

    Returns:
        The exit code.
    """
    finder = argparse.ArgumentParser(add_help=False)
    finder.add_argument("-c", "--config", default="")
    if not is_paddlex_config(finder.parse_known_args(argv)[0].config):
        return COMMANDS["export"]._replace(parser="build_script_parser").start(argv)
    parser = argparse.ArgumentParser(description="Exports a config of PaddleX as a folder that it runs.")
    parser.add_argument("-c", "--config", required=True, help="YAML file of PaddleX")
    parser.add_argument("--override", action="append", default=[], help="sets a key of it, KEY=VALUE")
    parser.add_argument("-p", "--pretrained_params", help="weights (default: Global.pretrained_model)")
    parser.add_argument("-o", "--output_path", default="inference", help="folder (default inference)")
    return run_command(_export, parser.parse_args(argv))


def _train_or_test(args: argparse.Namespace) -> int:
    _prepare(args.config, args.override)
    overrides, _ = train.overrides_of(args)
    with quiet_import():
        from paddlevideo_fast import assembly
        from paddlevideo_fast.apps.paddlex.folders import PaddleXFolders
        from paddlevideo_fast.engine import TrainingInterrupted
        from paddlevideo_fast.modeling import activation_of

    cfg, order = load_paddlex_config(args.config, overrides, "test" if args.test else "train")
    setup_logging(cfg.get("log_level", "INFO"), rank())
    if activation_of(cfg["MODEL"]) != "softmax":
        text = "PaddleX trains and measures one class a video; use paddlevideo-fast train and test"
        raise cfg.error("MODEL.head.activation", text)
    if args.test:
        metrics = assembly.test(cfg).metrics
        if rank() == 0:
            top1, top5 = ([*(v for k, v in metrics.items() if k.startswith("top")), 1.0, 1.0])[:2]
            print(f"avg_acc1={top1:.5f}, avg_acc5={top5:.5f}", flush=True)  # what PaddleX looks for
        return 0
    folders = PaddleXFolders(order, Path(args.config), cfg["model_name"], cfg["keep_last"])
    try:
        assembly.train(cfg, [folders] if order.uniform_output else [])
    except TrainingInterrupted as exc:
        return 128 + exc.signal_number
    return 0


def _export(args: argparse.Namespace) -> None:
    _prepare(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.apps.export.export import ExportOptions, export_model
        from paddlevideo_fast.apps.export.paddlex_form import PaddleXFolder

    cfg, order = load_paddlex_config(args.config, args.override, "export")
    weights = args.pretrained_params or order.weights
    if weights is None:
        text = "Global.pretrained_model: names no weights; give them here or with -p"
        raise ConfigError([f"{args.config}  {text}"])
    options = ExportOptions(
        class_names=order.labels,
        program="pdmodel" if _wants_paddle2() else None,
        paddlex=PaddleXFolder(order.model_name, order.topk),
    )
    for file in export_model(cfg, weights, args.output_path, options=options).all:
        print(file)


def _wants_paddle2() -> bool:
    """Whether PaddleX's flag asks for a program in the format of Paddle 2."""
    return dict(os.environ).get("FLAGS_json_format_model", "1").lower() in ("0", "false")


def _prepare(config: str, overrides: Sequence[str]) -> None:
    """Sets device and flags of this process, before Paddle is imported."""
    if device_of(config, overrides) == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.environ.get("OMP_NUM_THREADS") == "1":  # Paddle sets it in PaddleX's process, which starts this one
        del os.environ["OMP_NUM_THREADS"]
    prepare_process(config, overrides)
