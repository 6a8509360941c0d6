"""Parameters and multiply-adds of built-in networks, counted in a forward pass of one clip."""

import argparse
from collections.abc import Sequence
from typing import Any

import paddle

from paddlevideo_fast.config import load_config
from paddlevideo_fast.deploy.export import clip_shape
from paddlevideo_fast.deploy.recipe import recipe_of
from paddlevideo_fast.modeling import build_model, count_parameters
from paddlevideo_fast.modeling.complexity import MacCounter

# one config for each network, in the order of the README's table
CONFIGS = (
    *("tsn_k400_videos", "tsm_k400_videos", "pptsm_k400_frames_uniform", "pptsm_lcnet_k400_8frames_uniform"),
    *("slow_8x8", "slowfast_4x16", "slowfast_8x8", "i3d_8x8", "r2plus1d_r50_16x4", "x3d_s", "x3d_m"),
    *("movinet_k400_frame", "mvitv2_s_16x4", "videoswin_tiny_k400_videos", "timesformer_k400_videos"),
    *("videomae_vit_s_k400_videos", "videomae_vit_b_k400_videos"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="built-in configs (default: README's)")


def run(configs: Sequence[str] = CONFIGS) -> dict[str, Any]:
    """Counts each network.

    Args:
        configs: names of built-in configs.

    Returns:
        "rows", by config: "clip", [T, H, W] of a clip of the validation, "parameters", and "macs", the
        multiply-adds of one clip and crop.
    """
    return {"rows": {name: _counted(name) for name in configs}}


def _counted(name: str) -> dict[str, Any]:
    config = load_config(name)
    num_frames, height, width = clip_shape(recipe_of(config, "valid", "float32"))
    model = build_model(config["MODEL"], load_pretrained=False)
    model.eval()
    shape = [1, 3, num_frames, height, width]
    if model.layout == "NTCHW":
        shape[1:3] = num_frames, 3
    with MacCounter(model) as counter, paddle.no_grad():
        model(paddle.zeros(shape))
    return {
        "clip": [num_frames, height, width],
        "parameters": count_parameters(model),
        "macs": counter.macs,
    }
