"""Small networks with weights in a file, as a training leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple, Tuple

import paddle
import pytest

from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.modeling import build_model

ROOT = Path(__file__).resolve().parents[2]


class Trained(NamedTuple):
    cfg: Config
    model: Any
    weights: Path
    normalization: Tuple[Tuple[float, ...], Tuple[float, ...]]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Function from "tsm" or "slowfast" to the quick start's network; its weights are random, none is 0."""
    folder = tmp_path_factory.mktemp("trained")
    made = {}

    def make(name: str) -> Trained:
        if name not in made:
            cfg = load_config(str(ROOT / f"configs/quickstart/{name}_motion.yaml"))
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
def motion_videos(tmp_path_factory: pytest.TempPathFactory, run_script: Callable[..., Any]) -> Path:
    """A motion data set: 8 validation clips of 64×64, 16 frames, in a folder with `valid.list`."""
    root = tmp_path_factory.mktemp("motion") / "set"
    options = {"train": 8, "valid": 8, "size": 64, "frames": 16, "workers": 1}
    run_script("data/make_motion_dataset.py", "--output", root, *(f"--{k}={v}" for k, v in options.items()))
    return root
