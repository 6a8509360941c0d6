"""The program of trained weights, in a folder `inference` beside them."""

from pathlib import Path

from paddlevideo_fast.apps.export.export import checksum_of_source, export_model
from paddlevideo_fast.apps.predict.program import find_program, settings_file
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import ConfigError, ProgramError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

FOLDER = "inference"


def program_of_weights(cfg: Config, weights: Path) -> Path:
    """The program of these weights, without its ending; it is exported where there is none of them yet.

    The best weights give `inference/<model_name>`, others `inference/<name of their file>`; with
    `merge_tokens`, `_merged<N>` is added.

    Args:
        cfg: the config of the training.
        weights: the trained weights.

    Raises:
        PaddleVideoFastError: see `export_model`.
    """
    best = f"{cfg['model_name']}_best"
    name = cfg["model_name"] if weights.stem == best else weights.stem
    merged = f"_merged{cfg['merge_tokens']}" if cfg.get("merge_tokens") else ""
    program = weights.parent / FOLDER / f"{name}{merged}"
    if _is_made_from(program, checksum_of_source(cfg, weights)):
        logger.info("program: %s, exported before", program)
    else:
        logger.info("program: exporting to %s", program)
        export_model(cfg, weights, program.parent, program.name)
    return program


def _is_made_from(program: Path, made_from: int | None) -> bool:
    try:
        find_program(program)
        return read_recipe(settings_file(program)).settings.made_from == made_from
    except (ProgramError, ConfigError):  # missing, or of another version
        return False
