import pytest

from paddlevideo_fast.config import build, build_list, load_config
from paddlevideo_fast.errors import ConfigError


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
