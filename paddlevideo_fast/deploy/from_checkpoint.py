"""The program of trained weights, in a folder `inference` beside them."""

import json
import zlib
from dataclasses import asdict
from pathlib import Path

import paddle

import paddlevideo_fast
from paddlevideo_fast.config import Config
from paddlevideo_fast.deploy.export import ExportOptions, export_model
from paddlevideo_fast.deploy.program import checksum_of, find_program, settings_file
from paddlevideo_fast.deploy.recipe import read_recipe, recipe_of
from paddlevideo_fast.errors import ConfigError, ProgramError
from paddlevideo_fast.loader.class_names import NAMES_FILE
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

FOLDER = "inference"


def program_of_weights(cfg: Config, weights: Path) -> Path:
    """The program of these weights, without its ending; it is exported where there is none of them yet.

    The best weights give `inference/<model_name>`, others `inference/<name of their file>`.

    Args:
        cfg: the config of the training.
        weights: the trained weights. Class names beside them go before those of the config.

    Raises:
        PaddleVideoFastError: see `export_model`.
    """
    names = weights.parent / NAMES_FILE
    class_names = names if names.is_file() else None
    best = f"{cfg['model_name']}_best"
    program = weights.parent / FOLDER / (cfg["model_name"] if weights.stem == best else weights.stem)
    made_from = _made_from(cfg, weights, class_names)
    if _is_made_from(program, made_from):
        logger.info("program: %s, exported before", program)
    else:
        logger.info("program: exporting to %s", program)
        options = ExportOptions(class_names=class_names, made_from=made_from)
        export_model(cfg, weights, program.parent, program.name, options)
    return program


def _made_from(cfg: Config, weights: Path, class_names: Path | None) -> int:
    """A checksum of all that decides the program and its settings."""
    recipe = recipe_of(cfg)
    names = class_names.read_text(encoding="utf-8") if class_names else cfg["DATASET"].get("class_names")
    versions = paddlevideo_fast.__version__, paddle.__version__
    decisive = [versions, cfg["MODEL"], asdict(recipe.settings), dict(recipe.section), names]
    return zlib.crc32(json.dumps(decisive, default=str).encode(), checksum_of(weights))


def _is_made_from(program: Path, made_from: int) -> bool:
    try:
        find_program(program)
        return read_recipe(settings_file(program)).settings.made_from == made_from
    except (ProgramError, ConfigError):  # missing, or of another version
        return False
