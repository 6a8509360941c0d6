"""The settings file of PaddleX and PaddleVideo, `inference.yml`: how a program is fed.

    PreProcess.transform_ops    ReadVideo, Scale, CenterCrop, Image2Array, NormalizeVideo, in this order
    PostProcess.Topk            how many classes to show, and their names

It can say one thing only: the middle frames of segments, resized to 4:3 by PaddleVideo's bilinear rule, the
square in their middle, one view of a video.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.loader import Sampler
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import IMAGENET
from paddlevideo_fast.loader.transforms.crop import CenterCrop, Scale
from paddlevideo_fast.log import get_logger, warn_once

NAME = "inference"  # of the files; PaddleX looks for no other
_OPS = "PreProcess.transform_ops"
_LABELS = "PostProcess.Topk.label_list"


@dataclass(frozen=True)
class PaddleXFolder:
    """What PaddleX's settings file says beside the pipeline.

    Args:
        model_name: what `create_model` must ask for; None: any of PaddleX's names.
        topk: classes that PaddleX shows by default.
    """

    model_name: str | None = None
    topk: int = 1


def save_paddlex_form(
    dataset: ClipDataset, class_names: Sequence[str], folder: PaddleXFolder, path: str | Path
) -> None:
    """Writes `inference.yml`, with which `create_model` and the pipeline video_classification run a program.

    Args:
        dataset: reads videos for the program; see `check_paddlex_form`.
        class_names: names by number.
        folder: what else the file says.
        path: the file.
    """
    pipeline = dataset.pipeline
    if pipeline.resample != "bilinear":
        warn_once(
            get_logger(),
            "PaddleX resizes frames by its bilinear rule: to validate as PaddleX predicts, set "
            "PIPELINE.valid.resample to bilinear",
        )
    sample: Any = pipeline.sample
    geometric: Any = pipeline.geometric
    scale, crop = geometric
    mean, std = pipeline.normalization
    read = {"num_seg": sample.num_seg, "seg_len": sample.seg_len, "sample_type": "uniform"}
    content: dict[str, Any] = {
        "PreProcess": {
            "transform_ops": [
                {"ReadVideo": read},
                {"Scale": {"short_size": scale.short_size}},
                {"CenterCrop": {"target_size": crop.target_size}},
                {"Image2Array": {"data_format": "tchw"}},
                {"NormalizeVideo": {"mean": list(mean), "std": list(std)}},
            ]
        },
        "PostProcess": {"Topk": {"topk": folder.topk, "label_list": list(class_names)}},
    }
    if folder.model_name is not None:
        content = {"Global": {"model_name": folder.model_name}, **content}
    atomic_write_text(path, dump(content))


def check_paddlex_form(dataset: ClipDataset, layout: str, input_dtype: str, activation: Activation) -> None:
    """Checks that PaddleX can feed a program as `dataset` does.

    Args:
        dataset: reads videos for the program.
        layout: of the network's clips, "NTCHW" or "NCTHW".
        input_dtype: of the program.
        activation: makes probabilities of the program's logits.

    Raises:
        ProgramError: it cannot; the message has the reasons.
    """
    reasons = list(_reasons_against(dataset, layout, input_dtype))
    if activation != "softmax":
        reasons.insert(0, "it gives a video one class, by softmax, and this network any number, by sigmoid")
    if reasons:
        raise ProgramError(f"PaddleX cannot run this program: {'; '.join(reasons)}")


def _reasons_against(dataset: ClipDataset, layout: str, input_dtype: str) -> Iterator[str]:
    """What PaddleX would do otherwise, as one clause each."""
    if layout != "NTCHW":
        yield "it feeds clips [N, T, 3, H, W], and this network is 3D and takes [N, 3, T, H, W]"
    if input_dtype != "float32":
        yield "it normalises pixels itself, so leave out --uint8"
    num_clips = dataset.num_views * dataset.pipeline.num_views
    if num_clips > 1:
        yield f"it makes one clip of a video, and this config makes {num_clips}"
    sample, steps = dataset.pipeline.sample, dataset.pipeline.geometric
    others = ("frame_interval", "select_left", "dense_sample", "linspace_sample", "by_ratio")
    if not isinstance(sample, Sampler):
        yield f"it takes the middle frames of segments, as Sampler does, and the pipeline has {_name(sample)}"
    elif not sample.valid_mode or any(getattr(sample, other) for other in others):
        yield f"it takes the middle frames of segments: valid_mode, none of {', '.join(others)}"
    kinds = [type(step) for step in steps]
    if kinds != [Scale, CenterCrop]:
        actual = ", ".join(map(_name, steps)) or "nothing"
        yield f"it does Scale and CenterCrop, and the pipeline does {actual}"
    elif not getattr(steps[0], "fixed_ratio", True) or not getattr(steps[1], "do_round", True):
        yield "it does Scale with fixed_ratio, to 4:3, and CenterCrop with do_round"
    if dataset.pipeline.pixelwise:
        changes = ", ".join(map(_name, dataset.pipeline.pixelwise))
        yield f"it changes no colours, and the pipeline does {changes}"


def _name(component: Any) -> str:
    return type(component).__name__


def from_paddlex_form(source: Config) -> Config:
    """The content of an `inference.yml` as the content of our own settings file, unchecked.

    Raises:
        ConfigError: it lacks a part, or has an operation that PaddleX does not have.
    """
    ops = dict(_operations(source))
    labels = source.at(_LABELS)
    if not isinstance(labels, list) or not labels:
        raise source.error(_LABELS, "the names of the classes are missing")
    sample = {"num_seg": 8, "seg_len": 1, **ops.get("ReadVideo", {})}
    if sample.pop("sample_type", "uniform") != "uniform":
        raise source.error(_OPS, "ReadVideo: sample_type is not uniform; that is not read here")
    sample.pop("target_size", None)  # PaddleX leaves it without effect, too
    pixels = {"mean": list(IMAGENET[0]), "std": list(IMAGENET[1]), **ops.get("NormalizeVideo", {})}
    steps: list[dict[str, Any]] = [
        {"Scale": {"short_size": 224, **ops.get("Scale", {})}},
        {"CenterCrop": {"target_size": 224, **ops.get("CenterCrop", {})}},
        {"Image2Array": {}},
        {"Normalization": pixels},
    ]
    content = {
        "model_name": source.at("Global.model_name") or NAME,
        "num_classes": len(labels),
        "layout": "NTCHW",
        "input_dtype": "float32",
        "class_names": [str(label) for label in labels],
        "PIPELINE": {
            "decode": {"name": "VideoDecoder"},
            "sample": {"name": "Sampler", **sample, "valid_mode": True},
            "transform": steps,
            "resample": "bilinear",
        },
    }
    return Config(content, {(): source.where(())}, source.path)


def _operations(source: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and arguments of the operations before the network."""
    items = source.at(_OPS)
    if not isinstance(items, list):
        raise source.error(_OPS, "a list of operations such as ReadVideo and Scale is missing")
    known = ("ReadVideo", "Scale", "CenterCrop", "Image2Array", "NormalizeVideo")
    for item in items:
        name, arguments = next(iter(item.items())) if isinstance(item, dict) and item else (item, None)
        if name == "KeepKeys":
            continue
        if name not in known or not isinstance(arguments or {}, dict):
            raise source.error(_OPS, f"{name!r}: expected one of {', '.join(known)}, with its arguments")
        yield name, arguments or {}
