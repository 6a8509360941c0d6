"""The program of trained weights, in a folder `inference` beside them."""

import importlib.util
from pathlib import Path
from typing import Any

from paddlevideo_fast.apps.export.command import OPSET_VERSION
from paddlevideo_fast.apps.export.export import ExportOptions, checksum_of_source, export_model
from paddlevideo_fast.apps.predict.program import find_program, settings_file
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import ConfigError, InstallationError, MissingExtraError, ProgramError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.registry import BACKBONES

logger = get_logger(__name__)

FOLDER = "inference"


def program_of_weights(cfg: Config, weights: Path, may_take_onnx: bool = False) -> Path:
    """The program of these weights, without its ending; it is exported where there is none of them yet.

    The best weights give `inference/<model_name>`, others `inference/<name of their file>`; with
    `merge_tokens`, `_merged<N>` is added.

    Args:
        cfg: the config of the training.
        weights: the trained weights.
        may_take_onnx: an export also writes ONNX, if onnxruntime runs this network fastest and is installed
            with the converter.

    Raises:
        PaddleVideoFastError: see `export_model`.
    """
    best = f"{cfg['model_name']}_best"
    name = cfg["model_name"] if weights.stem == best else weights.stem
    merged = f"_merged{cfg['merge_tokens']}" if cfg.get("merge_tokens") else ""
    program = weights.parent / FOLDER / f"{name}{merged}"
    if _is_made_from(program, checksum_of_source(cfg, weights)):
        logger.info("exported model: %s, from an earlier export", program)
    else:
        logger.info("exporting the network to %s", program)
        takes_onnx = may_take_onnx and _onnxruntime_is_fastest(cfg)
        try:
            options = ExportOptions(onnx_opset=OPSET_VERSION if takes_onnx else None)
            export_model(cfg, weights, program.parent, program.name, options)
        except (ProgramError, MissingExtraError, InstallationError) as error:
            if not takes_onnx:
                raise
            logger.info("Paddle Inference runs the exported model, not onnxruntime: %s", error)
            export_model(cfg, weights, program.parent, program.name)
    return program


def _onnxruntime_is_fastest(cfg: Config) -> bool:
    """Whether onnxruntime, of what is installed, runs the network of a config fastest on a CPU."""
    name = (cfg["MODEL"].get("backbone") or {}).get("name")
    backbone: Any = BACKBONES.get(name) if name else None
    if backbone is None or backbone.cpu_runtime != "onnxruntime":
        return False
    missing = [module for module in ("onnxruntime", "paddle2onnx") if not importlib.util.find_spec(module)]
    if missing:
        text = 'onnxruntime takes less time: pip install "paddlevideo_fast[onnx]" before the export'
        logger.info("Paddle Inference runs the exported model; %s", text)
    return not missing


def _is_made_from(program: Path, made_from: int | None) -> bool:
    try:
        find_program(program)
        return read_recipe(settings_file(program)).settings.made_from == made_from
    except (ProgramError, ConfigError):  # missing, or of another version
        return False
