"""Every YAML of configs/ builds its network and reads real files, in small pictures.

Those that name something new train two steps and validate, too. Only paths, batch sizes, sizes in pixels,
the number of equal blocks of a transformer and the length of the run change. Nothing is saved.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import paddle
import pytest

from paddlevideo_fast import assembly
from paddlevideo_fast.assembly import RunPlan, folder, plan_run, run
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import ReadOnlyStore
from paddlevideo_fast.loader import ClipRequest, build_dataset
from paddlevideo_fast.modeling import build_model
from tests.support.numbered_clips import draw

CONFIGS_DIR = Path(__file__).resolve().parents[3] / "configs"
CONFIGS = sorted(CONFIGS_DIR.glob("[!_]*/**/*.yaml"))
WIDTH_PX, HEIGHT_PX, NUM_FRAMES = 80, 64, 40
SHRINKAGE = 14  # of the sizes in pixels: 224 becomes 16, of which a ResNet leaves one
SIZES = ("short_size", "target_size", "min_size", "max_size", "crop_size")
SMALL_ENOUGH_PX = 64
MOST_BLOCKS = 2  # of a transformer, or of one of its stages: the others are like them


def named(path: Path) -> set[str]:
    """The components, switches and keys of a config's training, without their numbers."""
    config = load_config(path)
    data, pipeline = ([config[name][part] for part in ("train", "valid")] for name in ("DATASET", "PIPELINE"))
    network = json.dumps(config["MODEL"])
    others = [config.get(name) for name in ("OPTIMIZER", "METRIC", "MIX", "LORA", "MULTIGRID", "PRECISEBN")]
    words = re.findall(r'"\w+": (?:"\w*"|true|false|null|)', network + json.dumps([pipeline, others]))
    steps = [data[0]["format"], *(name for step in pipeline[0]["transform"] for name in step)]
    return {*words, str(re.findall(r'"(?:framework|name|data_format)": "(\w+)"', network)), str(steps)}


def with_something_new(paths: list[Path]) -> list[Path]:
    """The configs that name what none before them names: the others differ from those in numbers."""
    known: set[str] = set()
    return [path for path in paths if not (new := named(path)) <= known and not known.update(new)]


TRAINED = with_something_new(CONFIGS)


class Files(NamedTuple):
    """Lists of the same clips as videos and as folders of frames.

    Attributes:
        lists: by "train" or "valid", then by whether it is of folders.
    """

    root: Path
    lists: dict[str, dict[bool, Path]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, make_clip: Any) -> Files:
    """Two classes of one clip each; training lists repeat them, for the large batches of multigrid."""
    root = tmp_path_factory.mktemp("zoo")
    lines: dict[bool, list[str]] = {False: [], True: []}
    for label in (0, 1):
        make_clip(root / f"{label}.mp4", NUM_FRAMES, (WIDTH_PX, HEIGHT_PX))
        (root / f"{label}").mkdir()
        for number in range(NUM_FRAMES):
            bgr = cv2.cvtColor(draw(number, WIDTH_PX, HEIGHT_PX), cv2.COLOR_RGB2BGR)
            assert cv2.imwrite(str(root / f"{label}" / f"img_{number + 1:05}.jpg"), bgr)
        lines[False].append(f"{label}.mp4 {label}\n")
        lines[True].append(f"{label} {NUM_FRAMES} {label}\n")
    lists: dict[str, dict[bool, Path]] = {"train": {}, "valid": {}}
    for part, repeats in (("train", 32), ("valid", 1)):
        for of_folders, text in lines.items():
            path = root / f"{part}_{'frames' if of_folders else 'videos'}.list"
            path.write_text("".join(text * repeats))
            lists[part][of_folders] = path
    return Files(root, lists)


def small(path: Path, files: Files, folder: Path) -> Any:
    """The config, with less of everything but the network."""
    config = load_config(path)
    config.update(output_dir=str(folder), max_iters=2, log_interval=1, validate=True, val_interval=1)
    config.update(report=False, use_visualdl=False)
    config["DATASET"].update(
        batch_size=config["DATASET"]["train"].get("clips_per_video", 1),
        valid_batch_size=2,
        test_batch_size=1,
        num_workers=0,
        valid_num_workers=0,
    )
    # what is hidden of a clip are some of its squares of 16 pixels, others are not; 256 becomes one square
    # Hiera's mask units have 32 pixels
    is_large = "mask_ratio" in config["MODEL"] or "'Hiera'" in str(config)
    shrinkage = SHRINKAGE // (1 + is_large) if "VJEPA2" not in str(config) else 16
    for name in ("train", "valid", "test"):
        section = config["DATASET"][name]
        of_folders = section["format"] == "FrameDataset"
        section.pop("suffix", None)
        listed = files.lists["train" if name == "train" else "valid"][of_folders]
        section.update(data_prefix=str(files.root), file_path=str(listed))
        shrink(config["PIPELINE"][name]["transform"], shrinkage)
    for part in parts_of(config["MODEL"]):
        part.pop("pretrained", None)
        part.pop("partial_bn", None)  # it keeps statistics of pretrained weights
        if "depths" in part:
            part["depths"] = [min(depth, MOST_BLOCKS) for depth in part["depths"]]
        elif "num_heads" in part or "VisionTransformer" in str(part.get("name")):
            part["depth"] = MOST_BLOCKS
    config.pop("GRADIENT_ACCUMULATION", None)  # it would make many passes of a step
    if "MULTIGRID" in config:
        config["MULTIGRID"]["bn_base_size"] = 1  # as the batches have one clip
    if "PRECISEBN" in config:
        config["PRECISEBN"]["num_iters_preciseBN"] = 2
    return config


def parts_of(section: Any) -> list[Any]:
    """All mappings in a section, itself included."""
    values = section.values() if isinstance(section, dict) else section
    inside = [part for value in values if isinstance(value, (dict, list)) for part in parts_of(value)]
    return [section, *inside] if isinstance(section, dict) else inside


def shrink(transforms: list[dict[str, Any]], shrinkage: int) -> None:
    steps = [arguments for step in transforms for arguments in step.values() if arguments]
    sizes = [(step, name) for step in steps for name in SIZES if name in step]
    if max(step[name] for step, name in sizes) > SMALL_ENOUGH_PX:
        for step, name in sizes:
            step[name] = math.ceil(step[name] / shrinkage)


def first_epoch(spec: RunSpec, world_size: int = 1) -> RunPlan:
    """The plan of a run, cut off after an epoch."""
    plan = plan_run(spec, world_size)
    return replace(plan, phases=[replace(plan.phases[0], end_epoch=1)])


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_it_trains_two_steps_and_validates(path, files, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "BackgroundStore", ReadOnlyStore)  # as a rank that writes no weights
    monkeypatch.setattr(run, "plan_run", first_epoch)
    config = small(path, files, tmp_path)
    if "DISTILLATION" in config:
        teacher = load_config(config["DISTILLATION"]["teacher"])
        config["DISTILLATION"]["teacher_weights"] = weights = str(files.root / "teacher.pdparams")
        paddle.save(build_model(teacher["MODEL"], load_pretrained=False).state_dict(), weights)
    if "LORA" in config:  # it needs weights to start from
        base = str(files.root / "base.pdparams")
        paddle.save(build_model(config["MODEL"]).state_dict(), base)
        config["MODEL"]["backbone"]["pretrained"] = base
    assembly.train(config)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "train"]
    assert len(steps) == 2
    assert all(math.isfinite(record["loss"]) for record in steps)
    (valid,) = [record for record in records if record["kind"] == "valid"]
    assert valid["num_samples"] == 2
    assert not list(tmp_path.glob("*.pd*"))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted({*CONFIGS} - {*TRAINED}), ids=lambda path: path.stem)
def test_the_network_of_another_is_built(path, files):
    build_model(small(path, files, Path("unused"))["MODEL"], load_pretrained=False)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_it_tests_with_fits_its_network(path, files):
    config = small(path, files, Path("unused"))
    dataset = build_dataset(config["DATASET"]["test"], config["PIPELINE"]["test"], training=False, seed=0)
    segments = {part["num_seg"] for part in parts_of(config["MODEL"]) if "num_seg" in part}
    for view in {0, dataset.num_views - 1}:
        sample = dataset[ClipRequest(0, 0, view, dataset.num_views)]
        num_frames, height, width, channels = sample.clip.shape
        assert (height, channels) == (width, 3)
        assert all(num_frames % (sample.num_crops * num_seg) == 0 for num_seg in segments)
