"""Configs of transformers and of MoViNet with the sections, keys and values that PaddleVideo's have."""

from pathlib import Path

import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.config import RunSpec, build, load_config
from paddlevideo_fast.loader import DecodeSampler, build_pipeline
from paddlevideo_fast.registry import LEARNING_RATES, MIXES, OPTIMIZERS

CONFIGS = sorted(Path(__file__).with_name("paddlevideo").glob("*.yaml"))
WITHOUT_EFFECT = {
    "timesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "pptimesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "tokshift": {"Normalization.tensor_shape", "INFERENCE"},
    "movinet": {"INFERENCE"},
    "videoswin": {"Scale.backend", "RandomResizedCrop.backend", "CenterCrop.backend", "UniformCrop.backend",
                  "Normalization.tensor_shape", "sample.use_pil", "head.spatial_type", "INFERENCE"},
}  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_with_paddlevideos_keys_loads_and_fits_together(path, warnings):
    spec = RunSpec.for_training(load_config(path))
    told = {".".join(line.split("  ")[1].split(":")[0].split(".")[-2:]) for line in warnings}
    assert told == WITHOUT_EFFECT[path.stem.partition("_")[0]]
    check_evaluation(spec, "train", "valid", "test")
    rate = build(LEARNING_RATES, spec.optimizer["learning_rate"])
    assert rate.misfit(spec.run.epochs) == ""
    assert rate.at(0) > 0
    build(OPTIMIZERS, spec.optimizer)
    if spec.mix:
        build(MIXES, spec.mix)
    for split in ("train", "valid", "test"):
        section = spec.splits[split].pipeline
        pipeline = build_pipeline(section)
        takes_a_part = isinstance(pipeline.sample, DecodeSampler)
        assert takes_a_part == ("timesformer" in path.stem)
        if takes_a_part:
            assert pipeline.sample.sampling_rate == 32
            assert pipeline.sample.test_mode == (split == "test")
