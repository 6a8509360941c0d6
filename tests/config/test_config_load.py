import copy
import os
import pickle

import pytest

from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.errors import ConfigError
from tests.config.conftest import problems_of


@pytest.mark.smoke
def test_values_and_origins_of_one_file(write, root):
    config = load_config(write("a.yaml"), (), root=root)
    assert config["OPTIMIZER"]["learning_rate"]["values"] == [0.02, 2e-3, 0.0002]
    assert config["PIPELINE"]["train"]["transform"] == [{"Scale": {"short_size": 256}}, {"RandomFlip": None}]
    assert config.path == "a.yaml"
    assert config.origins["MODEL", "backbone", "depth"] == "a.yaml:5"
    assert config.origins["PIPELINE", "train", "transform", 0, "Scale", "short_size"] == "a.yaml:15"
    assert config.where(("MODEL", "backbone", "new")) == "a.yaml:3"
    assert config.where(("NEW",)) == "a.yaml"


def test_copies_keep_the_origins(write, root):
    config = load_config(write("a.yaml"), (), root=root)
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert isinstance(twin, Config)
        assert twin == config
        assert twin.origins == config.origins


def test_bases_merge_in_order_and_remember_where(write):
    write("base/one.yaml", "A: {x: 1, y: 1, l: [1, 2]}\nB: 1\n")
    write("base/two.yaml", "_BASE_: one.yaml\nA:\n  y: 2\n")
    write("base/three.yaml", "A: {l: [3]}\nB: 3\n")
    write("c/top.yaml", "_BASE_: [../base/two.yaml, ../base/three.yaml]\nC: {z: 0}\nA:\n  w: 5\n")
    config = load_config("c/top.yaml", check=False)
    assert config == {"A": {"x": 1, "y": 2, "l": [3], "w": 5}, "B": 3, "C": {"z": 0}}
    assert config.origins["A", "x"] == "base/one.yaml:1"
    assert config.origins["A", "y"] == "base/two.yaml:3"
    assert config.origins["A", "l", 0] == "base/three.yaml:1"
    assert config.origins["A", "w"] == "c/top.yaml:4"
    assert ("A", "l", 1) not in config.origins
    assert not [key for key in config.origins if "_BASE_" in key]


def test_a_file_may_be_inherited_twice(write):
    write("root.yaml", "A: 1\n")
    write("left.yaml", "_BASE_: root.yaml\nB: 1\n")
    write("right.yaml", "_BASE_: root.yaml\nC: 1\n")
    write("top.yaml", "_BASE_: [left.yaml, right.yaml]\n")
    assert load_config("top.yaml", check=False) == {"A": 1, "B": 1, "C": 1}


def test_a_new_name_keeps_what_both_components_share(write, root, told):
    write("base.yaml")
    text = """\
        _BASE_: base.yaml
        MODEL:
            framework: Recognizer3D
            backbone:
                name: Swin
        OPTIMIZER:
            name: Adam
        """
    config = load_config(write("top.yaml", text), (), root=root)
    assert config["MODEL"] == {"framework": "Recognizer3D", "backbone": {"name": "Swin"}}
    assert set(config["OPTIMIZER"]) == {"name", "learning_rate", "weight_decay"}
    assert config.origins["OPTIMIZER", "learning_rate", "values"] == "base.yaml:23"
    assert told == [
        "top.yaml:5  MODEL.backbone.name=Swin: left out what was written for ResNet: depth",
        "top.yaml:7  OPTIMIZER.name=Adam: left out what was written for Momentum: momentum",
    ]


def test_an_override_of_a_name_does_what_a_file_does(write, root, told):
    write("base.yaml")
    write("top.yaml", "_BASE_: base.yaml\nOPTIMIZER: {name: Adam, beta: 0.5}\n")
    by_file = load_config("top.yaml", (), root=root)
    by_override = load_config("base.yaml", ["OPTIMIZER.name=Adam", "OPTIMIZER.beta=0.5"], root=root)
    assert by_file == by_override
    assert [line.partition(": ")[2] for line in told] == [
        "left out what was written for Momentum: momentum"
    ] * 2


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_written_for_the_new_name_is_checked(write, root, order):
    overrides = ["OPTIMIZER.momentum=0.5", "OPTIMIZER.name=Adam"][::order]
    with pytest.raises(ConfigError) as caught:
        load_config(write("a.yaml"), overrides, root=root)
    number = 1 if order == 1 else 2
    assert caught.value.problems == [
        f"-o #{number}  OPTIMIZER.momentum: unknown key for Adam; known: beta, learning_rate, weight_decay"
    ]


def test_a_shared_argument_that_does_not_fit_goes(write, root):
    """It has one name and another meaning."""
    write("base.yaml")
    overrides = ["MODEL.backbone.name=Wide"]
    assert load_config("base.yaml", overrides, root=root)["MODEL"]["backbone"] == {"name": "Wide"}


def test_names_that_change_twice(write, root, told):
    write("base.yaml")
    write("middle.yaml", "_BASE_: base.yaml\nOPTIMIZER: {name: Adam, beta: 0.5}\n")
    write("top.yaml", "_BASE_: middle.yaml\nOPTIMIZER: {name: Momentum}\n")
    optimizer = load_config("top.yaml", (), root=root)["OPTIMIZER"]
    assert "beta" not in optimizer
    assert optimizer["momentum"] == 0.9, "it was written for a Momentum"
    assert told == ["top.yaml:2  OPTIMIZER.name=Momentum: left out what was written for Adam: beta"]


def test_the_same_name_keeps_arguments(write, root):
    write("base.yaml")
    config = load_config(
        write("top.yaml", "_BASE_: base.yaml\nMODEL: {backbone: {name: ResNet, pretrained: w}}"),
        (),
        root=root,
    )
    assert config["MODEL"]["backbone"] == {"name": "ResNet", "depth": 50, "pretrained": "w"}


def test_null_turns_a_section_off(write, good, root, warnings):
    write("base.yaml", good + "PRECISEBN: {interval: 3}\n")
    config = load_config(write("top.yaml", "_BASE_: base.yaml\nPRECISEBN:\n"), (), root=root)
    assert config["PRECISEBN"] is None
    assert warnings == []


def test_circles_are_named(write):
    write("a.yaml", "x: 1\n_BASE_: sub/b.yaml\n")
    write("sub/b.yaml", "_BASE_: ../c.yaml\n")
    write("c.yaml", "_BASE_: ./a.yaml\n")
    circle = "a.yaml -> sub/b.yaml -> c.yaml -> a.yaml"
    assert problems_of("a.yaml") == [f"c.yaml:1  _BASE_: files inherit in a circle: {circle}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A: 1\n_BASE_: no/such.yaml\n", "a.yaml:2  _BASE_='no/such.yaml': there is no file no/such.yaml"),
        ("_BASE_: 3\n", "a.yaml:1  _BASE_=3: expected a path or a list of paths"),
        ("_BASE_: [a, {b: c}]\n", "a.yaml:1  _BASE_=['a', {'b': 'c'}]: expected a path or a list of paths"),
        ("- 1\n", "a.yaml  the file is not a mapping of sections such as MODEL and DATASET"),
    ],
)
def test_bad_files(write, text, problem):
    assert problems_of(write("a.yaml", text)) == [problem]


def test_missing_and_binary_files(write, tmp_path):
    write("a.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert problems_of("none.yaml") == [
        f"none.yaml  there is no such file; paths start from the current folder, {os.getcwd()}"
    ]
    assert problems_of("b.yaml") == ["b.yaml  the file cannot be read: it is not UTF-8 text"]


def test_saved_config_gives_the_same_run(write, root, tmp_path):
    write("base.yaml")
    write("top.yaml", "_BASE_: base.yaml\nmodel_name: '1e-4'\nseed: 7\n")
    overrides = ["OPTIMIZER.weight_decay.value=5e-05", "MODEL.backbone.pretrained='2020-01-01'"]
    config = load_config("top.yaml", overrides, root=root)
    config.save(tmp_path / "saved.yaml")
    again = load_config("saved.yaml", (), root=root)
    assert again == config
    assert again["model_name"] == "1e-4"
    assert again["OPTIMIZER"]["weight_decay"]["value"] == 5e-05
    assert list(again) == list(config)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.yaml", "saved.yaml", "top.yaml"]


def test_a_problem_that_a_component_raises_gets_its_place(write, root):
    config = load_config(write("a.yaml"), ["MODEL.backbone.depth=18"], root=root)
    raised = [
        "MODEL.backbone.depth=18: too few: 5",
        "OPTIMIZER.weight_decay.name=L1: not for it",
        "DATASET.train: RandomFlip: no",
        "list.txt: is empty",
        "a recognizer needs 'framework'",
        "a.yaml:3  MODEL.backbone: has its place already",
    ]
    with pytest.raises(ConfigError) as caught, config.placing():
        raise ConfigError(raised)
    places = ["-o #1  ", "a.yaml:25  ", "a.yaml:8  ", "", "", ""]
    assert caught.value.problems == [place + problem for place, problem in zip(places, raised)]


@pytest.mark.annex
@pytest.mark.parametrize(
    ("framework", "form", "said"),
    [
        (
            "RecognizerGCN",
            "SkeletonDataset",
            "MODEL.framework: RecognizerGCN: skeleton models are out of scope",
        ),
        ("Recognizer2D", "SkeletonDataset", "DATASET.train.format: SkeletonDataset: skeleton models are out"),
        ("BMNLocalizer", "BMNDataset", "MODEL.framework: BMNLocalizer: models that localize actions are out"),
        ("MSTCN", "MSTCNDataset", "MODEL.framework: MSTCN: segmentation models are out of scope"),
        ("Recognizer1D", "FeatureDataset", "models of text, sound or stored features are out of scope"),
    ],
)
def test_a_config_of_another_task_is_one_sentence(tmp_path, framework, form, said):
    """As PaddleVideo's configs of skeletons, in which no section is one of ours."""
    section = f"{{format: {form}, file_path: data.npy, label_path: labels.npy}}"
    pipeline = "{sample: {name: AutoPadding, window_size: 350}, transform: [SkeletonNorm: ]}"
    file = tmp_path / "other.yaml"
    file.write_text(
        f"MODEL: {{framework: {framework}, backbone: {{name: STGCN}}, head: {{name: STGCNHead}}}}\n"
        f"DATASET: {{batch_size: 64, train: {section}, test: {section}}}\n"
        f"PIPELINE: {{train: {pipeline}, test: {pipeline}}}\nMETRIC: {{name: SkeletonMetric}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (problem,) = caught.value.problems
    assert said in problem
    assert problem.startswith(f"{file}:")
