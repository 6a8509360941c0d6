"""The size of the networks of the built-in configs: parameters, and multiply-adds of a clip."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.apps.predict.recipe import clip_shape, recipe_of
from paddlevideo_fast.config import load_config
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters

# What the page that helps to choose a network names, in its order.
CONFIGS = (
    *("tsm_small", "tsm_lite0_small", "tsm_lite0_k400_videos"),
    *("tsm_k400_videos", "tsn_k400_videos", "pptsm_k400_frames_uniform"),
    *("pptsm_lcnet_k400_8frames_uniform", "pptsm_mv3_k400_frames_uniform", "movinet_k400_frame"),
    *("x3d_xs", "x3d_s", "x3d_m", "r2plus1d_r50_16x4", "i3d_8x8"),
    *("slow_8x8", "slowfast_4x16", "slowfast_8x8"),
    *("mvitv2_s_16x4", "videoswin_tiny_k400_videos", "videoswin_base_k400_videos"),
    *("timesformer_k400_videos", "pptimesformer_k400_videos"),
    *("videomae_vit_s_k400_videos", "videomae_vit_b_k400_videos"),
    *("hiera_b_16x4", "hiera_bplus_16x4"),
)


def run(configs: Sequence[str] = CONFIGS) -> dict[str, Any]:
    """Counts each network on one clip of the shape that validation makes.

    Args:
        configs: names of configs.

    Returns:
        "rows": by config, "parameters", "macs" of a clip and its "clip" as [T, H, W].
    """
    return {"rows": {name: _size(name) for name in configs}}


def _size(name: str) -> dict[str, Any]:
    config = load_config(name)
    recipe = recipe_of(config, "valid")
    frames, height, width = clip_shape(recipe)
    model = build_model(config["MODEL"], load_pretrained=False)
    model.eval()
    shape = [frames, 3, height, width] if recipe.settings.layout == "NTCHW" else [3, frames, height, width]
    with paddle.no_grad(), MacCounter(model) as counter:
        model(paddle.zeros([1, *shape]))
    return {"parameters": count_parameters(model), "macs": counter.macs, "clip": [frames, height, width]}


def write_random_weights(model: Mapping[str, Any], path: Path) -> Path:
    """Saves random weights of a network, section MODEL of a config. Returns the path."""
    paddle.seed(1)
    paddle.save(build_model(model, load_pretrained=False).state_dict(), str(path))
    return path
