"""Validation and test show a picture in the ratio it was filmed in, in every config but those named here."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.loader import ClipRequest, VideoRecord, build_pipeline

CONFIGS_DIR = Path(__file__).resolve().parents[2] / "configs"
CONFIGS = {str(path.relative_to(CONFIGS_DIR)): path for path in CONFIGS_DIR.glob("[!_]*/**/*.yaml")}

# PaddleVideo's own recipes of PP-TSM, PP-TSMv2 and MoViNet scale to 4:3, whatever the video's ratio is. Their
# published weights were trained so, and PaddleX, whose modules run PP-TSM and PP-TSMv2, knows no other way.
TO_4_3 = {
    "recognition/movinet/movinet_k400_frame.yaml",
    "recognition/pptsm/pptsm_k400_frames_dense.yaml",
    "recognition/pptsm/pptsm_k400_frames_dense_r101.yaml",
    "recognition/pptsm/pptsm_k400_frames_uniform.yaml",
    "recognition/pptsm/pptsm_k400_videos_uniform.yaml",
    "recognition/pptsm/pptsm_mv2_k400_videos_uniform.yaml",
    "recognition/pptsm/pptsm_mv3_k400_frames_uniform.yaml",
    "recognition/pptsm/v2/pptsm_lcnet_k400_16frames_uniform.yaml",
    "recognition/pptsm/v2/pptsm_lcnet_k400_16frames_uniform_dml_distillation.yaml",
    "recognition/pptsm/v2/pptsm_lcnet_k400_8frames_uniform.yaml",
    "recognition/pptsm/v2/pptsm_lcnet_k400_8frames_uniform_dml_distillation.yaml",
}
SOURCES = [(1920, 1080), (1080, 1920), (455, 256)]


class Source:
    """What a pipeline asks of a video before it has read a frame."""

    num_frames = 600
    avg_fps = 30.0

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height


def distortion_px(section: dict[str, Any], width: int, height: int) -> float:
    """How much wider or narrower than in its own ratio the whole source is shown, in pixels of the output."""
    pipeline = build_pipeline(section)
    request, rng = ClipRequest(0, 0), np.random.default_rng(0)
    geometry = pipeline.plan(Source(width, height), VideoRecord("video.mp4", 0), request, rng).geometry
    return max(
        abs(geometry.width / view.width - geometry.height / view.height) * max(width, height)
        for view in geometry.views
    )


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_evaluation_keeps_the_ratio_of_the_video(name):
    pipelines = load_config(CONFIGS[name])["PIPELINE"]
    evaluations = set(product(("valid", "test"), SOURCES))
    rounding_px = 1
    squeezed = {
        (split, size) for split, size in evaluations if distortion_px(pipelines[split], *size) > rounding_px
    }
    if name in TO_4_3:
        assert squeezed >= set(product(("valid", "test"), SOURCES[:2])), f"{name}: take it off the list"
    else:
        assert squeezed == set()


def test_the_named_configs_exist():
    assert set(CONFIGS) >= TO_4_3
