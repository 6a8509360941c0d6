"""Whether explanations find what moves: Grad-CAM and occlusion of networks that were trained on motion.

The clips are of `paddlevideo-fast data motion`, where the place of the object in each frame is known.
"""

import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from benchmarks.measuring import Positive
from paddlevideo_fast.apps.data.motion import draw_states
from paddlevideo_fast.apps.predict.predictor import probabilities
from paddlevideo_fast.apps.predict.recipe import Recipe, recipe_of
from paddlevideo_fast.cli.command import find_weights
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report.explain import Explain, by_grad_cam, occlusion
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.request import MidpointGenerator
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights

_VALID = 1  # the number of the split in the seed of a clip
_SIDE, _RADIUS = 0.66, 0.48  # of the sprite at size 0, in picture widths; of its outline, in sides


class _Clip(NamedTuple):
    """A clip as the network sees it, uint8 [T, H, W, 3]; where the object is, bool [T, H, W]."""

    pixels: np.ndarray
    inside: np.ndarray


def run(*, runs: Sequence[Path], clips: Positive = 100) -> dict[str, Any]:
    """Explains the predicted class of the first validation clips by both methods.

    Args:
        runs: output folders of trainings on motion.
        clips: of each.

    Returns:
        For each network and method "hits": of how many
        clips the heat is denser in the box around the object than in the picture; "ratio": the median of the
        heat's share in the box over the box's share of the picture; "untrained_hits" and "untrained_ratio":
        the same of the network with random weights; "sec": the median time for a clip.
    """
    return {"networks": {folder.name: _network(folder, clips) for folder in runs}}


def _network(folder: Path, num_clips: int) -> dict[str, Any]:
    cfg = load_config(folder / "config.yaml")
    recipe = recipe_of(cfg)
    clips = [_clip(cfg, recipe, place) for place in range(num_clips)]
    paddle.seed(1)
    untrained, model = (build_model(cfg["MODEL"], load_pretrained=False) for _ in range(2))
    load_weights(model, find_weights(None, cfg, str(folder)), strict=True)
    row, random = _explained(model, recipe, clips), _explained(untrained, recipe, clips)
    for way in ("gradcam", "occlusion"):
        row[way] |= {f"untrained_{key}": random[way][key] for key in ("hits", "ratio")}
    return row


def _explained(network: Any, recipe: Recipe, clips: Sequence[_Clip]) -> dict[str, Any]:
    network.eval()
    preprocess = Preprocess(*recipe.dataset().pipeline.normalization, network.layout)

    @paddle.no_grad()
    def scores(pixels: np.ndarray) -> np.ndarray:
        return probabilities(network(preprocess(pixels)).numpy(), network.activation)

    predicted = [int(scores(clip.pixels[None]).argmax()) for clip in clips]
    return {
        "gradcam": _measured(by_grad_cam(network, preprocess), clips, predicted),
        "occlusion": _measured(partial(occlusion, scores), clips, predicted),
    }


def _measured(explain: Explain, clips: Sequence[_Clip], predicted: Sequence[int]) -> dict[str, float]:
    ratios, seconds = [], []
    for clip, label in zip(clips, predicted):
        began = time.perf_counter()
        heat = explain(clip.pixels, label)
        seconds.append(time.perf_counter() - began)
        share = heat[clip.inside].sum() / max(heat.sum(), 1e-12)
        ratios.append(float(share / clip.inside.mean()))
    hits = sum(ratio > 1 for ratio in ratios)
    return {"hits": hits, "ratio": statistics.median(ratios), "sec": statistics.median(seconds)}


def _clip(cfg: Config, recipe: Recipe, place: int) -> _Clip:
    """A validation clip of the run's data set, as an evaluation sees it."""
    folder = Path(cfg["DATASET"]["valid"]["data_prefix"])
    (made,) = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["runs"]
    options = made["options"]
    rng = np.random.default_rng([options["seed"], _VALID, place])
    states = draw_states(options["classes"][place % len(options["classes"])], options["frames"], rng)
    dataset = recipe.dataset([str(folder / "valid" / f"{place:06d}.mp4")])
    pixels = dataset[ClipRequest(0, epoch=0, num_views=dataset.num_views)].clip
    if pixels is None:
        raise PaddleVideoFastError(f"{dataset.records[0].path}: does not decode; make the data set anew")
    record = dataset.records[0]
    with dataset.open(record) as video:
        plan = dataset.pipeline.plan(video, record, ClipRequest(0, 0), MidpointGenerator())
    boxes = np.zeros_like(pixels)
    resample = plan.geometry.plan()
    for slot, frame in enumerate(plan.frames.tolist()):
        resample.draw(_box(states[frame], options["size"]), boxes, [slot])
    return _Clip(pixels, boxes[..., 0] > 127)


def _box(state: np.ndarray, size: int) -> np.ndarray:
    """A picture, uint8 [size, size, 3], that is white in the square around the object at any angle."""
    x, y, octaves, _ = state
    radius = _RADIUS * _SIDE * size * 2.0**octaves
    centre = (0.5 + np.array([y, x])) * size
    top, left = np.floor(np.clip(centre - radius, 0, size))
    bottom, right = np.ceil(np.clip(centre + radius, 0, size))
    picture = np.zeros((size, size, 3), np.uint8)
    picture[int(top) : int(bottom), int(left) : int(right)] = 255
    return picture
