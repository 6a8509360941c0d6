"""What prediction has to know besides the program: a small config, which export writes next to it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from paddlevideo_fast.apps.export.paddlex_form import from_paddlex_form
from paddlevideo_fast.apps.predict.program import Runtime
from paddlevideo_fast.apps.predict.views import Views
from paddlevideo_fast.config import Config, check_config
from paddlevideo_fast.config.load import IMPORTS, import_plugins, read_with_bases
from paddlevideo_fast.config.sections import PIPELINE, Group
from paddlevideo_fast.config.settings import settings_from
from paddlevideo_fast.config.types import MAX_SIZE, Activation, NumViews, Range, Size, arguments_of
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import ClipRequest, VideoRecord
from paddlevideo_fast.loader.class_names import Classes, check_classes, classes_of_config
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import VideoFacts
from paddlevideo_fast.loader.request import MidpointGenerator
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import activation_of
from paddlevideo_fast.plugins import located
from paddlevideo_fast.registry import DATASETS, DECODERS, RECOGNIZERS, SAMPLERS, TRANSFORMS, is_own

logger = get_logger(__name__)

Split = Literal["valid", "test"]
FREE = -1
Axis = Annotated[int, Range(FREE, MAX_SIZE)]
_OF_EXPORT = ("input_dtype", "input_shape", "checksums")


@dataclass(frozen=True)
class ProgramSettings:
    """The plain keys of the settings file. Its section PIPELINE says how videos are read.

    Args:
        model_name: model name of the exported config.
        num_classes: length of the logits.
        layout: axes of a float32 input.
        activation: makes probabilities of the logits. "softmax": a video has one class; "sigmoid":
            any number.
        input_dtype: "uint8": pixels [N, T, H, W, 3], the program normalises them; "float32": normalised, in
            `layout`.
        input_shape: [T, H, W] of the clips, -1 where the program takes any.
        class_names: names by number; null where they are unknown.
        num_ensemble_views: spans of a video, each a view of its own.
        num_spatial_crops: crops of a span, each a view of its own; null: the crops that the transforms make.
            Where both are null, all clips of a video are one view.
        tracks: how clips follow tracks, see `Tracks`; null: as usual.
        checksums: CRC-32 of the program's files, by their endings; null for programs that are not checked.
        made_from: checksum of the weights and the config that it was exported from; null: not known.
        imports: modules and absolute paths of files that register what PIPELINE names.
        cpu_runtime: what runs this network fastest on a CPU; see `program.Runtime`.
        int8: how the ONNX program in int8 compares with float32, see `quantize.Comparison`, and its
            `float_layers`; null: it computes in float.
    """

    model_name: str
    num_classes: Size
    layout: Literal["NTCHW", "NCTHW"]
    input_dtype: Literal["uint8", "float32"]
    input_shape: tuple[Axis, Axis, Axis] = (FREE, FREE, FREE)
    activation: Activation = "softmax"
    class_names: list[str] | None = None
    num_ensemble_views: NumViews | None = None
    num_spatial_crops: NumViews | None = None
    tracks: dict[str, Any] | None = None
    checksums: dict[str, int] | None = None
    made_from: int | None = None
    imports: Sequence[str] = ()
    cpu_runtime: Runtime = "onnxruntime"
    int8: dict[str, Any] | None = None


_FILE = Group({"PIPELINE": PIPELINE}, ProgramSettings, required=("PIPELINE",))


class Recipe(NamedTuple):
    """How a program is fed.

    Attributes:
        settings: the plain keys.
        section: the section PIPELINE.
    """

    settings: ProgramSettings
    section: Mapping[str, Any]

    def dataset(self, paths: Sequence[str] = ()) -> ClipDataset:
        """A data set of video files that gives the same clips as an evaluation."""
        return self.views.dataset([VideoRecord(path, (0,)) for path in paths])

    @property
    def views(self) -> Views:
        """How a video becomes clips."""
        settings = self.settings
        return Views(self.section, settings.num_ensemble_views, settings.num_spatial_crops)

    def with_settings(self, **changes: Any) -> "Recipe":
        """The same recipe with other values of some plain keys."""
        return self._replace(settings=replace(self.settings, **changes))

    def save(self, path: str | Path) -> None:
        """Writes the settings file, which `read_recipe` reads."""
        content = {**asdict(self.settings), "PIPELINE": dict(self.section)}
        for name in ("imports", "activation", "tracks", "int8"):
            if content[name] == getattr(ProgramSettings, name):
                del content[name]
        Config(content).save(path)


# A video that is larger and longer than any clip, so that a pipeline shows the shape of its clips.
_ANY_VIDEO = VideoFacts(num_frames=100_000, avg_fps=30.0, width=1024, height=1024, square_size=(1024, 1024))


def clip_shape(recipe: Recipe) -> list[int]:
    """[T, H, W] of the clips that the pipeline makes for the network."""
    dataset = recipe.dataset()
    record, request = VideoRecord("a video", (0,)), ClipRequest(0, 0)
    plan = dataset.pipeline.plan(_ANY_VIDEO, record, request, MidpointGenerator())
    num_frames, height, width, _ = plan.geometry.plan().shape(len(plan.frames))
    return [num_frames // dataset.num_crops, height, width]


def read_recipe(path: str | Path, imports: Sequence[str] = ()) -> Recipe:
    """Reads the settings file next to a program: ours, or one in the form of PaddleX.

    The file may come from somebody else, together with code. So it may not name files by relative paths.

    Args:
        path: the file.
        imports: plug-ins to import, in place of those that the file names.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    content = read_with_bases(str(path))
    relative = [] if imports else [one for one in content.imports if one.is_relative]
    if relative:
        text = "comes with this file, and is not run unasked; name it with --import"
        raise ConfigError([f"{one.where}={one.name!r}: {text}" for one in relative])
    if imports:
        content.imports = [located(name, "--import", "") for name in imports]
    import_plugins(content)
    names = [one.name for one in content.imports]
    if "PreProcess" in content:
        content = from_paddlex_form(content)
    if names:
        content[IMPORTS] = names
    check_config(content, _FILE)
    return Recipe(settings_from(ProgramSettings, content), content["PIPELINE"])


def recipe_in_place(path: str | Path, cfg: Config, skip_names: bool = False) -> Recipe:
    """The recipe of a config with its class names, and with the keys that only the export of a program knows.

    Args:
        path: the settings file next to the program; it may be missing, as for programs of PaddleVideo.
        cfg: says how videos are read.
        skip_names: leave out the class names of the config, for which others are given.

    Raises:
        PaddleVideoFastError: see `recipe_of` and `read_recipe`.
    """
    recipe = recipe_of(cfg)
    classes = None if skip_names else classes_of_config(cfg, recipe.settings.num_classes)
    known: dict[str, Any] = {"class_names": classes and classes.names}
    if Path(path).is_file():
        settings = read_recipe(path, cfg.get("imports", ())).settings
        known.update({name: getattr(settings, name) for name in _OF_EXPORT})
        if classes and settings.class_names:
            check_classes(classes, Classes(settings.class_names, str(path)))
        elif classes:
            logger.info("classes not compared: no names in %s", path)
        known["class_names"] = settings.class_names or known["class_names"]
    return recipe.with_settings(**known)


def recipe_of(
    cfg: Config, split: Split = "valid", input_dtype: Literal["uint8", "float32"] = "float32"
) -> Recipe:
    """The recipe that reads video files as a training config reads DATASET.`split`.

    Args:
        cfg: a checked config.
        split: the split whose pipeline and views are taken.
        input_dtype: input dtype of the program.

    Raises:
        ConfigError: the config has no such pipeline, or its network gives no logits.
    """
    section = (cfg.get("PIPELINE") or {}).get(split)
    if not section:
        raise cfg.error(f"PIPELINE.{split}", "prediction reads videos as this section says")
    if section.get("decode") and section["decode"]["name"] != "VideoDecoder":  # a list of frame folders
        section = {**section, "decode": {"name": "VideoDecoder"}}
    recognizer: Any = RECOGNIZERS.get(cfg["MODEL"]["framework"])
    num_classes = recognizer.classes_of(cfg["MODEL"])
    if not num_classes:
        text = "gives no scores; fine-tune a classifier from its weights, and give the config of that"
        raise cfg.error("MODEL.framework", f"{recognizer.__name__} {text}")
    settings = ProgramSettings(
        model_name=cfg["model_name"],
        num_classes=num_classes,
        layout=recognizer.layout,
        activation=activation_of(cfg["MODEL"]),
        input_dtype=input_dtype,
        imports=cfg.get("imports", ()) if _names_plugins(section) else (),
        **views_of((cfg.get("DATASET") or {}).get(split) or {}),
    )
    return Recipe(settings, section)


def _names_plugins(section: Mapping[str, Any]) -> bool:
    """Whether a section PIPELINE names components of plug-ins."""
    parts = [(DECODERS, "decode"), (SAMPLERS, "sample"), (SAMPLERS, "decode_sampler")]
    used = [registry.get(section[key]["name"]) for registry, key in parts if section.get(key)]
    used += [TRANSFORMS.get(name) for step in section["transform"] for name in step]
    return not all(map(is_own, used))


def views_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """How many views the data set of a section makes of a video, and how its clips follow tracks."""
    arguments = arguments_of(DATASETS.get(section.get("format", "VideoDataset")))
    return {
        name: section.get(name, arguments[name].default if name in arguments else None)
        for name in ("num_ensemble_views", "num_spatial_crops", "tracks")
    }
