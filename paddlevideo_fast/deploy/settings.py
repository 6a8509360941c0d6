"""What prediction has to know besides the program: a small config, which export writes next to it."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Union, cast

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.load import load_with_schema
from paddlevideo_fast.config.run import settings_from
from paddlevideo_fast.config.sections import ROOT, Group
from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.errors import ConfigError, ProgramError
from paddlevideo_fast.loader import VideoRecord, build_pipeline
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.registry import DATASETS, RECOGNIZERS

Split = Literal["valid", "test"]
FREE = -1
_OF_EXPORT = ("input_dtype", "input_shape", "class_names", "checksums")


@dataclass(frozen=True)
class ProgramSettings:
    """The plain keys of the file; its section PIPELINE says which pixels a program gets.

    Args:
        model_name: of the config that the program was exported from.
        num_classes: length of the logits.
        layout: axes of a float32 input.
        input_dtype: "uint8": pixels [N, T, H, W, 3], the program normalises them; "float32": normalised, in
            `layout`.
        input_shape: [T, H, W] of the clips, -1 where the program takes any.
        class_names: by number; null where nobody said.
        num_ensemble_views: spans of a video that are looked at.
        num_spatial_crops: crops of a span, each a view of its own; null: those that the transforms make.
            Where both are null, all clips of a video are one view.
        checksums: CRC-32 of the program's files, by their endings; null for programs that are not checked.
    """

    model_name: str
    num_classes: PositiveInt
    layout: Literal["NTCHW", "NCTHW"]
    input_dtype: Literal["uint8", "float32"]
    input_shape: Sequence[int] = (FREE, FREE, FREE)
    class_names: Optional[List[str]] = None
    num_ensemble_views: Optional[PositiveInt] = None
    num_spatial_crops: Optional[PositiveInt] = None
    checksums: Optional[Dict[str, int]] = None


_PIPELINE = cast(Group, ROOT.members["PIPELINE"]).members["valid"]
_FILE = Group({"PIPELINE": _PIPELINE}, ProgramSettings, required=("PIPELINE",))


class Recipe(NamedTuple):
    """How a program is fed.

    Attributes:
        settings: the plain keys.
        section: PIPELINE, as it was written.
    """

    settings: ProgramSettings
    section: Mapping[str, Any]

    def dataset(self, paths: Sequence[str] = ()) -> ClipDataset:
        """The clips of video files, as an evaluation sees them."""
        records = [VideoRecord(path, 0) for path in paths]
        settings = self.settings
        views = settings.num_ensemble_views, settings.num_spatial_crops
        pipeline = build_pipeline(self.section)
        return ClipDataset(records, "", pipeline, 0, False, 1, *views)

    def save(self, path: Union[str, Path]) -> None:
        """Writes the file that `read_recipe` reads."""
        Config({**asdict(self.settings), "PIPELINE": dict(self.section)}).save(path)


def read_recipe(path: Union[str, Path]) -> Recipe:
    """Reads what export wrote next to a program.

    Raises:
        ConfigError: it is missing or wrong.
    """
    content = load_with_schema(path, (), _FILE)
    return Recipe(settings_from(ProgramSettings, content), content["PIPELINE"])


def recipe_in_place(path: Union[str, Path], cfg: Config) -> Recipe:
    """As `recipe_of` a config, but with what only the export of a program knows of it.

    Args:
        path: what export wrote next to the program; it may be missing, as for programs of PaddleVideo.
        cfg: says how videos are read.

    Raises:
        PaddleVideoFastError: see `recipe_of` and `read_recipe`.
    """
    recipe = recipe_of(cfg)
    if not Path(path).is_file():
        return recipe
    known = read_recipe(path).settings
    kept = {name: getattr(known, name) for name in _OF_EXPORT}
    return recipe._replace(settings=replace(recipe.settings, **kept))


def recipe_of(
    cfg: Config,
    split: Split = "valid",
    input_dtype: Literal["uint8", "float32"] = "float32",
    class_names: Optional[Union[str, Path]] = None,
) -> Recipe:
    """How a network sees DATASET.`split` of its training config, with video files as input.

    Args:
        cfg: checked.
        split: whose pipeline and views.
        input_dtype: of the program.
        class_names: file with the names of the classes, one a line.

    Raises:
        ConfigError: the config has no such pipeline.
        ProgramError: see `read_class_names`.
    """
    section = (cfg.get("PIPELINE") or {}).get(split)
    if not section:
        raise ConfigError([f"{cfg.path}  PIPELINE.{split}: prediction reads videos as this section says"])
    if section.get("decode") and section["decode"]["name"] != "VideoDecoder":  # a list of frame folders
        section = {**section, "decode": {"name": "VideoDecoder"}}
    recognizer: Any = RECOGNIZERS.get(cfg["MODEL"]["framework"])
    num_classes = recognizer.classes_of(cfg["MODEL"])
    settings = ProgramSettings(
        model_name=cfg["model_name"],
        num_classes=num_classes,
        layout=recognizer.layout,
        input_dtype=input_dtype,
        class_names=read_class_names(class_names, num_classes) if class_names else None,
        **_views((cfg.get("DATASET") or {}).get(split) or {}),
    )
    return Recipe(settings, section)


def _views(section: Mapping[str, Any]) -> Dict[str, Any]:
    """The views that the data set of a section makes of a video."""
    arguments = inspect.signature(DATASETS.get(section.get("format", "VideoDataset"))).parameters
    return {
        name: section.get(name, arguments[name].default if name in arguments else None)
        for name in ("num_ensemble_views", "num_spatial_crops")
    }


def read_class_names(path: Union[str, Path], num_classes: int) -> List[str]:
    """Names of the classes, one a line, in the order of their numbers.

    Raises:
        ProgramError: the file cannot be read, or has another number of names.
    """
    try:
        names = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"{path}: cannot be read: {error}") from error
    names = [name.strip() for name in names if name.strip()]
    if len(names) != num_classes:
        raise ProgramError(
            f"{path}: has {len(names)} names, and the network {num_classes} classes; write one name a line"
        )
    return names
