"""Small networks with weights in a file, as a training leaves them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import ExportedFiles, ExportOptions, export_model
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.modeling import build_model

ROOT = Path(__file__).resolve().parents[2]
_SMALL_3D = "width_per_group: 4, stage_blocks: [1, 1, 1, 1]"
_TINY_TRANSFORMER = (
    "{name: VisionTransformer, img_size: 40, patch_size: 8, embed_dim: 24, depth: 2, num_heads: 2}"
)
_SMALL_SWIN = "patch_size: [2, 4, 4], embed_dim: 8, depths: [2, 1], num_heads: [1, 2], window_size: [3, 3, 4]"
_LEARNER = "{name: PPTSM_v2, num_seg: 8, scale: 0.125, class_num: 8}"
_TEACHER = "{name: ResNetTSM, depth: 18, num_seg: 8, width: 4, stage_blocks: [1, 1, 1, 1]}"
_TWO_NETWORKS = f"""
models: [
  Student: {{backbone: {_LEARNER}, head: {{name: MoViNetHead}}}},
  Teacher: {{backbone: {_TEACHER}, head: {{name: TSMHead, num_classes: 8, in_channels: 32}}}},
],
loss: {{
  Train: [{{name: DistillationDMLLoss, model_name_pairs: [Student, Teacher]}}],
  Val: [{{name: DistillationCELoss, model_name_pairs: [Student, GroundTruth]}}],
}}
"""
# the names of the classes are beside the lists, where the quick start has made them
_NO_LISTS = [f"DATASET.{split}.file_path=none.list" for split in ("train", "valid", "test")]
# The quick start's config that a network is in, and what it has otherwise.
_HEAD = "MODEL.head={name: I3DHead, num_classes: 8, in_channels: %d}"
NETWORKS: dict[str, tuple[str, ...]] = {
    "tsm": ("tsm",),
    "slowfast": ("slowfast",),
    "videomae": ("vit", "MODEL.backbone.depth=1"),
    "vjepa2": (
        "vit",
        "MODEL.backbone={name: VJEPA2, embed_dim: 24, depth: 2, num_heads: 2, patch_size: 7}",
        "MODEL.head={name: AttentiveHead, num_classes: 8, in_channels: 24, depth: 1, num_heads: 2}",
    ),
    "x3d": ("x3d",),
    "pptsm": ("tsm", "MODEL.backbone.name=ResNetTweaksTSM", "MODEL.head.name=ppTSMHead"),
    "i3d": ("slowfast", f"MODEL.backbone={{name: ResNetI3D, {_SMALL_3D}}}", _HEAD % 128),
    "timesformer": (
        "slowfast",
        f"MODEL={{framework: RecognizerTransformer, backbone: {_TINY_TRANSFORMER}, "
        "head: {name: TimeSformerHead, num_classes: 8, in_channels: 24}}",
    ),
    "swin": ("slowfast", f"MODEL.backbone={{name: SwinTransformer3D, {_SMALL_SWIN}}}", _HEAD % 16),
    "mvit": (
        "slowfast",
        "MODEL.backbone={name: MViT, num_frames: 8, crop_size: 32, embed_dim: 8, depths: [1, 1]}",
        "MODEL.head={name: TransformerHead, num_classes: 8, in_channels: 16}",
    ),
    "hiera": (
        "slowfast",
        "MODEL.backbone={name: Hiera, num_frames: 8, crop_size: 40, embed_dim: 8, "
        "depths: [1, 1, 2], mask_unit: 8, q_pool: 1}",
        "MODEL.head={name: VideoMAEHead, num_classes: 8, in_channels: 32}",
    ),
    "efficientnet_lite": (
        "tsm",
        "MODEL.backbone={name: EfficientNetLite, num_seg: 8}",
        "MODEL.head={name: TSMHead, num_classes: 8, in_channels: 1280}",
    ),
    "several": ("tsm", "MODEL.head.activation=sigmoid"),
    "distillation": ("tsm", f"MODEL={{framework: RecognizerDistillation, {_TWO_NETWORKS}}}"),
}


def logits_of(model: Any, clips: np.ndarray) -> np.ndarray:
    with paddle.no_grad():
        return model(paddle.to_tensor(clips)).numpy()


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    return actual.shape == expected.shape and np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


class Trained(NamedTuple):
    cfg: Config
    model: Any
    weights: Path
    normalization: tuple[tuple[float, ...], tuple[float, ...]]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Function from a key of `NETWORKS` to the network; its weights are random, none is 0."""
    folder = tmp_path_factory.mktemp("trained")
    made = {}

    def make(name: str) -> Trained:
        if name not in made:
            config, *overrides = NETWORKS[name]
            cfg = load_config(f"{config}_motion", [*overrides, *_NO_LISTS])
            paddle.seed(7)
            model = build_model(cfg["MODEL"], load_pretrained=False)
            for parameter in model.parameters():
                if not parameter.numpy().any():  # the last batch norm of a block, the head's bias
                    parameter.set_value(paddle.uniform(parameter.shape, min=0.2, max=0.5))
            model.eval()
            weights = folder / f"{name}.pdparams"
            paddle.save(model.state_dict(), str(weights))
            last = cfg["PIPELINE"]["valid"]["transform"][-1]["Normalization"]
            made[name] = Trained(cfg, model, weights, (tuple(last["mean"]), tuple(last["std"])))
        return made[name]

    return make


@pytest.fixture(scope="session")
def exported(
    trained: Callable[[str], Trained], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, ExportOptions], ExportedFiles]:
    """Function from a network and options to the files of its export, each made once."""
    made: dict[tuple[str, ExportOptions], ExportedFiles] = {}

    def make(name: str, options: ExportOptions) -> ExportedFiles:
        if (name, options) not in made:
            run, folder = trained(name), tmp_path_factory.mktemp("program")
            made[name, options] = export_model(run.cfg, run.weights, folder, options=options)
        return made[name, options]

    return make


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Function that runs a command of paddlevideo-fast in this process: (exit code, stdout, stderr)."""

    def start(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return start


@pytest.fixture
def predict(run: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Function that runs `paddlevideo-fast predict`."""
    return partial(run, "predict")


@pytest.fixture(scope="session")
def motion_videos(tmp_path_factory: pytest.TempPathFactory, run_script: Callable[..., Any]) -> Path:
    """A motion data set: 20 validation clips of 64×64, 16 frames, in a folder with `valid.list`."""
    root = tmp_path_factory.mktemp("motion") / "set"
    options = {"train": 8, "valid": 20, "size": 64, "frames": 16, "workers": 1}
    run_script("data/make_motion_dataset.py", "--output", root, *(f"--{k}={v}" for k, v in options.items()))
    return root
