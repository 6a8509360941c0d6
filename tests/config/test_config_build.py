"""Components of a config, and the configs of transformers with PaddleVideo's keys."""

from pathlib import Path

import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.config import RunSpec, build, build_list, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import DecodeSampler, build_pipeline
from paddlevideo_fast.registry import LEARNING_RATES, MIXES, OPTIMIZERS


def test_parts_are_built_first(write, root):
    config = load_config(write("a.yaml"), (), root=root)
    model = build(root.members["MODEL"].registry, config["MODEL"])
    assert type(model).__name__ == "Recognizer2D"
    assert (type(model.backbone).__name__, model.backbone.depth) == ("ResNet", 50)
    optimizer = build(root.members["OPTIMIZER"].registry, config["OPTIMIZER"], parameters=[1, 2])
    assert optimizer.parameters == [1, 2]
    assert optimizer.learning_rate.values == [0.02, 0.002, 0.0002]
    assert config["OPTIMIZER"]["name"] == "Momentum", "the section itself stays as it is"


def test_a_plain_section_needs_no_check_first(root):
    transforms = root.members["PIPELINE"].members["train"].members["transform"].registry
    scale, flip = build_list(
        transforms, [{"Scale": {"short_size": 8, "backend": "cv2"}}, {"RandomFlip": None}]
    )
    assert scale.short_size == 8
    assert flip.prob == 0.5


def test_a_built_part_is_passed_through(root):
    part = object()
    model = build(root.members["MODEL"].registry, {"framework": "Recognizer2D", "backbone": part})
    assert model.backbone is part


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"aux": True}, "a recognizer needs 'framework' in its section {'aux': True}"),
        ({"framework": "Recogniser2D"}, "unknown recognizer 'Recogniser2D'; did you mean 'Recognizer2D'?"),
        (
            {"framework": "Recognizer2D", "backbone": {"name": "resnet"}},
            "unknown backbone 'resnet'; did you mean 'ResNet'?",
        ),
    ],
)
def test_names_that_do_not_exist(root, section, problem):
    with pytest.raises(ConfigError) as caught:
        build(root.members["MODEL"].registry, section)
    assert caught.value.problems == [problem]


def test_wrong_arguments_are_named_as_a_check_does(root):
    section = {"framework": "Recognizer2D", "backbone": {"name": "ResNet", "dept": 50}}
    with pytest.raises(ConfigError) as caught:
        build(root.members["MODEL"].registry, section)
    assert caught.value.problems == [
        "dept: unknown key for ResNet; did you mean 'depth'?",
        "depth: missing for ResNet; expected int",
    ]


def test_weight_of_a_loss_may_mean_two_things():
    """`weight` is what Paddle's loss calls the factors on the classes."""
    with pytest.raises(
        ConfigError, match=r"loss_cfg\.weight: .* classes are class_weights, .* loss is loss_weight"
    ):
        load_config("tsm_motion", ["MODEL.head.loss_cfg={name: CrossEntropyLoss, weight: [1, 2, 1, 2]}"])


# --- Configs of transformers and of MoViNet with the sections, keys and values that PaddleVideo's have


CONFIGS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.annex] * (path.stem == "tokshift"))  # its colours
    for path in sorted(Path(__file__).with_name("paddlevideo").glob("*.yaml"))
]
WITHOUT_EFFECT = {
    "timesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "pptimesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "tokshift": {"Normalization.tensor_shape", "INFERENCE"},
    "movinet": {"INFERENCE"},
    "videoswin": {"Scale.backend", "RandomResizedCrop.backend", "CenterCrop.backend", "UniformCrop.backend",
                  "Normalization.tensor_shape", "sample.use_pil", "head.spatial_type", "INFERENCE"},
}  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS)
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
