"""The config that `init` writes: it inherits a built-in recipe, and changes what the data need."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from paddlevideo_fast.apps.init.init_dataset import ENDINGS, SIDES, Source
from paddlevideo_fast.apps.zoo import named_weights
from paddlevideo_fast.cli.command import quiet_import
from paddlevideo_fast.config.builtin import built_in, built_in_configs, find_config
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.sections import build
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.jobs.run import ToolError
from paddlevideo_fast.log import counted, printable
from paddlevideo_fast.registry import LEARNING_RATES, did_you_mean

CLIPS_OF_TRAINING = 6000  # of a first training on a CPU, over all its epochs
_EPOCHS = range(5, 61)
_PATHS = ("file_path", "data_prefix")
_MIN_UPDATES = 3  # of an epoch; fewer say little
_MIRRORED = re.compile(r"(?<![a-z])(left|right)(?![a-z])|左|右", re.IGNORECASE)


_RECIPES = {  # network → built-in configs: for a CPU, from nothing; and of full size
    "tsm": ("tsm_small", "tsm_ucf101_videos"),
    "tsm_lite0": ("tsm_lite0_small", "tsm_lite0_ucf101_videos"),
    "tsn": ("tsn_motion", "tsn_ucf101_videos"),
    "slowfast": ("slowfast_motion", "slowfast_ucf101_videos"),
    "x3d": ("x3d_motion", "x3d_s"),
    "mvit": ("mvit_motion", "mvitv2_s_16x4"),
    "swin": ("swin_motion", "videoswin_tiny_k400_videos"),
    "vit": ("vit_motion", "videomae_vit_s_k400_videos"),
    "i3d": (None, "i3d_ucf101_videos"),
    "slow": (None, "slow_ucf101_videos"),
    "pptsm": (None, "pptsm_ucf101_videos"),
    "r2plus1d": (None, "r2plus1d_r18_16x2"),
    "timesformer": (None, "timesformer_k400_videos"),
    "videomae": (None, "videomae_vit_s_k400_videos"),
}
NETWORKS = tuple(_RECIPES)


def recipe_of(name: str, has_gpu: bool) -> str:
    """The built-in config that a network's name means on this machine; other names stay."""
    on_cpu, full = _RECIPES.get(name.lower(), (None, name))
    if not os.path.isfile(find_config(full)):
        near = did_you_mean(name, [*_RECIPES, *built_in_configs()]).partition("; known")[0]
        raise ToolError(f"--recipe {name}: is no network, such as tsm, and no built-in config{near}")
    return full if has_gpu or on_cpu is None else on_cpu


class Recipe:
    """What a new config takes from the built-in config that it inherits.

    Args:
        name: of the built-in config.

    Attributes:
        batch_size: of training.
        clips_per_video: of training; batches hold a multiple of it.
        frames_of_clip: frames of a video that a clip spans.
        rate: its section `learning_rate`; empty for a number.
        epochs: of its training.
        pretrained: file of weights that it starts from; None: from nothing.
        downloads: the name under which training downloads these weights, since there is no such file; "":
            there is one, or nobody publishes it.
        transforms: of PIPELINE.train.
        samplers: of each part of PIPELINE.
        update_size: clips of an update; more than a batch where gradients are accumulated.
        base_batch_size: clips of an update that the learning rate is for; None: `update_size`.
        fine_tuning: the config that fine-tunes its network from weights of large data; None: there is none.

    Raises:
        ToolError: the config reads frames, or has no number of classes to set.
        ConfigError: there is no such config.
    """

    def __init__(self, name: str) -> None:
        with quiet_import():  # the check of a config imports Paddle
            config = load_config(name)
        data, pipeline = config["DATASET"], config["PIPELINE"]["train"]
        if data["train"]["format"] not in ("VideoDataset", "SFVideoDataset"):
            raise ToolError(f"--recipe {name}: reads frames; take a config for videos, such as tsm_small")
        if "num_classes" not in config["MODEL"].get("head", {}):
            raise ToolError(f"--recipe {name}: has no MODEL.head.num_classes to set; take another one")
        self.name = name
        self.batch_size: int = data["batch_size"]
        self.clips_per_video: int = data["train"].get("clips_per_video", 1)
        if decoding := pipeline.get("decode_sampler"):
            self.frames_of_clip: int = decoding["num_frames"] * decoding["sampling_rate"]
        else:
            self.frames_of_clip = pipeline["sample"].get("num_seg", 1) * pipeline["sample"].get("seg_len", 1)
        rate = config["OPTIMIZER"]["learning_rate"]
        self.rate: Mapping[str, Any] = rate if isinstance(rate, Mapping) else {}
        self.epochs: int = config["epochs"]
        self.pretrained: str | None = config["MODEL"]["backbone"].get("pretrained")
        stem = Path(self.pretrained or "").stem
        is_there = self.pretrained is None or Path(self.pretrained).exists()
        self.downloads = "" if is_there or named_weights.source_of(stem) is None else stem
        self.transforms: list[Any] = pipeline["transform"]
        self.samplers = {part: section.get("sample") or {} for part, section in config["PIPELINE"].items()}
        accumulation = config.get("GRADIENT_ACCUMULATION") or {}
        self.update_size: int = accumulation.get("global_batch_size") or self.batch_size
        self.base_batch_size: int | None = config["OPTIMIZER"].get("base_batch_size")
        tuned = f"{name.partition('_')[0]}_ucf101_videos"
        self.fine_tuning = None if self.pretrained or not built_in(tuned) else tuned


def config_text(
    recipe: Recipe, source: Source, output: Path, numbers: Mapping[str, int], ending: str
) -> tuple[str, list[str]]:
    """The text of the config of a new data set, and remarks for whoever made it.

    Args:
        recipe: what the config inherits.
        source: the data.
        output: folder of the lists and of the class names.
        numbers: of the videos, for "train" and "valid".
        ending: of the lists' names.
    """
    num_train, num_valid = numbers["train"], numbers["valid"]
    dataset = _dataset(source, output, ending, has_valid=num_valid > 0)
    content: dict[str, Any] = {
        "_BASE_": recipe.name,
        "paths": "config",
        "MODEL": {"head": {"num_classes": len(source.classes)}},
        "DATASET": dataset,
        "model_name": re.sub(r"\W+", "_", output.resolve().name) or "my_set",
        **({} if num_valid else {"validate": False}),
    }
    remarks = [f"the config inherits {recipe.name}"]
    if recipe.downloads:
        content["MODEL"]["backbone"] = {"pretrained": recipe.downloads}
        remarks.append(f"training starts from the weights {recipe.downloads}, and downloads them first")
    if source.has_several:
        content["MODEL"]["head"] |= {"activation": "sigmoid", "loss_cfg": {"name": "BinaryCrossEntropyLoss"}}
        content["METRIC"] = {"name": "MeanAveragePrecision"}
        remarks.append("a video may have any number of classes, and the metric is the mAP")
    update_size = _update_size(recipe, num_train)
    if update_size < recipe.batch_size:
        dataset["batch_size"] = update_size
        remarks.append(
            f"batches of {counted(update_size, 'clip')}, since there are only {num_train} for training"
        )
    notes = [*_set_epochs(content, recipe, num_train), *_set_updates(content, recipe, update_size)]
    pipeline: dict[str, dict[str, Any]] = {
        part: {"sample": {"by_ratio": True}}
        for part, sampler in recipe.samplers.items()
        if sampler.get("name") == "Sampler" and not sampler.get("by_ratio")
    }
    if pipeline:
        notes.append("frames by ratio, also of short videos, and as PaddleVideo takes them in the recipe")
    mirrored = [name for name in source.classes if _MIRRORED.search(name)]
    if mirrored and any("RandomFlip" in step for step in recipe.transforms):
        steps = [step for step in recipe.transforms if "RandomFlip" not in step]
        pipeline.setdefault("train", {})["transform"] = steps
        remarks.append(
            f"clips are not mirrored in training, since a class is called {printable(mirrored[0])}"
        )
    if pipeline:
        content["PIPELINE"] = pipeline
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)
    about = f"{counted(num_train, 'video')} of {counted(len(source.classes), 'class')} to train on"
    shown = f"paddlevideo-fast config show {shlex.quote(str(output))}"
    lines = [
        f"# Written by `paddlevideo-fast init`: {about}.",
        f"# Every key of {recipe.name} may be set here, too:  {shown}  prints them all.",
        "# Paths start from this folder.",
        *(f"# Changed: {note}." for note in notes),
        text,
    ]
    return "\n".join(lines), remarks


def kept_config(config: Path, source: Source, ending: str, start: str | None, has_valid: bool) -> list[str]:
    """Changes in the config of an earlier run what the new lists need, and nothing else; returns remarks.

    Args:
        config: the file.
        source: the data now.
        ending: of the lists' names.
        start: folder that the paths of the earlier lists started from; None: unknown.
        has_valid: there are videos for validation.
    """
    remarks = [f"{config} is kept; remove it for a new one"]
    text = config.read_text(encoding="utf-8")
    try:
        data: Any = load_config(config, check=False)
        head, sections = data["MODEL"]["head"], data["DATASET"]
        flips = any("RandomFlip" in step for step in data["PIPELINE"]["train"]["transform"])
        num_classes = int(head["num_classes"])
    except (ConfigError, KeyError, TypeError, ValueError):  # training says what is wrong with it
        return remarks
    wanted: dict[tuple[str, ...], Any] = {}
    lacks_valid = has_valid and data.get("validate") is False
    if lacks_valid:
        wanted["validate",] = True
    if num_classes < len(source.classes):
        wanted["MODEL", "head", "num_classes"] = len(source.classes)
    root = os.path.abspath(source.root)
    own = {os.path.abspath(config.parent / f"{side}{end}"): side for side in SIDES for end in ENDINGS}
    for part in ("train", "valid", "test"):
        listed, prefix = (os.path.abspath(sections.get(part, {}).get(key) or "") for key in _PATHS)
        if listed not in own:
            remarks.append(f"DATASET.{part} of {config} has another list, {listed}, which stays as it is")
            continue
        name = f"{'valid' if lacks_valid and part != 'train' else own[listed]}{ending}"
        if os.path.basename(listed) != name:
            wanted["DATASET", part, "file_path"] = name
        if prefix != root and start in (None, prefix):
            wanted["DATASET", part, "data_prefix"] = from_folder(source.root, config.parent)
    for key, value in wanted.items():
        place, shown = _place_of(text, key), json.dumps(value, ensure_ascii=False)
        if place is None or _place_of(text, ("paths",)) is None:  # inherited, or not as init writes it
            remarks.append(f"{config} needs {'.'.join(key)}: {shown}")
            continue
        more = ": start a new training" if key[-1] == "num_classes" else ""
        remarks.append(f"{'.'.join(key)} is now {value}, not {text[place]}{more}")
        text = f"{text[: place.start]}{shown}{text[place.stop :]}"
        atomic_write_text(config, text)
    if source.has_several and head.get("activation") != "sigmoid":
        remarks.append(
            f"videos have several classes, or none: {config} needs MODEL.head.activation: sigmoid, "
            "MODEL.head.loss_cfg: {name: BinaryCrossEntropyLoss} and METRIC: {name: MeanAveragePrecision}"
        )
    mirrored = [name for name in source.classes if _MIRRORED.search(name)]
    if mirrored and flips:
        remarks.append(f"clips are mirrored in training, though a class is called {printable(mirrored[0])}")
    return remarks


def base_of(config: Path) -> Any:
    """What a config inherits, as it is written there; None where it cannot be read or inherits nothing."""
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return content.get("_BASE_") if isinstance(content, dict) else None


def _place_of(text: str, key: Sequence[str]) -> slice | None:
    """Where a config has the value of a key; None where it does not say it itself."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for part in key:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == part), None)
    return slice(node.start_mark.index, node.end_mark.index) if isinstance(node, yaml.ScalarNode) else None


def _dataset(source: Source, output: Path, ending: str, has_valid: bool) -> dict[str, Any]:
    """The section DATASET; without videos for validation the training's stand for them."""
    clips = {"data_prefix": from_folder(source.root, output), "suffix": ""}
    lists = {side: f"{side}{ending}" for side in ("train", "valid")}
    held_out = lists["valid" if has_valid else "train"]
    return {
        "num_workers": "auto",
        "class_names": "classes.txt",
        "train": {**clips, "file_path": lists["train"]},
        "valid": {**clips, "file_path": held_out},
        "test": {**clips, "file_path": held_out},
    }


def from_folder(path: Path, folder: Path) -> str:
    """A path relative to a folder; absolute where the two share nothing but the root of the file system."""
    target, start = os.path.abspath(path), os.path.abspath(folder)
    return target if os.path.commonpath([target, start]) == os.sep else os.path.relpath(target, start)


def _update_size(recipe: Recipe, num_train: int) -> int:
    """Clips of an update: the recipe's, halved until an epoch has some updates."""
    size = recipe.update_size
    while size > 1 and _MIN_UPDATES * size > num_train:
        size //= 2
    return max(size // recipe.clips_per_video, 1) * recipe.clips_per_video


def _set_epochs(content: dict[str, Any], recipe: Recipe, num_train: int) -> list[str]:
    """Sets epochs and learning rate for the number of videos; returns what changed."""
    if not recipe.rate or (schedule := build(LEARNING_RATES, recipe.rate)).misfit(recipe.epochs):
        return []
    tunes_on_cpu = recipe.pretrained and recipe.name in {on_cpu for on_cpu, _ in _RECIPES.values()}
    most = recipe.epochs if tunes_on_cpu else _EPOCHS[-1]
    epochs = min(max(round(CLIPS_OF_TRAINING / max(num_train, 1)), _EPOCHS[0]), most)
    if epochs == recipe.epochs or not (rate := schedule.stretched(recipe.rate, recipe.epochs, epochs)):
        return []
    content["epochs"] = epochs
    content["OPTIMIZER"] = {"learning_rate": rate}
    notes = [f"{epochs} epochs, and {recipe.epochs} in the recipe"]
    for key, value in rate.items():
        if isinstance(value, list):
            notes.append(f"{key} {value}, and {list(recipe.rate[key])} in the recipe")
        elif key != schedule.end_argument:
            notes.append(f"{value:g} epochs of warm-up, and {recipe.rate[key]:g} in the recipe")
    return notes


def _set_updates(content: dict[str, Any], recipe: Recipe, update_size: int) -> list[str]:
    """Sets accumulation and the base of the learning rate for updates of this size; returns what changed."""
    notes: list[str] = []
    if update_size != recipe.update_size and recipe.update_size != recipe.batch_size:
        content["GRADIENT_ACCUMULATION"] = {"global_batch_size": update_size}
        notes.append(f"updates of {counted(update_size, 'clip')}, and of {recipe.update_size} in the recipe")
    base = recipe.base_batch_size or recipe.update_size
    if update_size != base:
        if recipe.base_batch_size is None:
            content.setdefault("OPTIMIZER", {})["base_batch_size"] = base
        notes.append(
            f"the recipe's learning rate is for updates of {base} clips and follows their number: in one "
            f"process, updates of {update_size} take {update_size / base:g} times it"
        )
    return notes
