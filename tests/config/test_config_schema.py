"""The constructor of a component is its schema; the generated reference shows it."""

from pathlib import Path

import pytest

from paddlevideo_fast.config import Config, check_config
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import ConfigError
from tests.config.conftest import problems_of
from tools.config_reference import argument_texts, reference

BAD = """\
MODEL:
    framework: Recogniser2D
DATASET:
    batch_size: 0
    worker: 4
    train:
        format: VideoDataset
        data_prefix: 7
        pipeline: x
PIPELINE:
    train:
        transform:
            - Scale:
                short_size: true
            - RandomFlip:
              prob: 0.5
            - Blur:
            - RandomFlip: 0.5
    trian: {}
OPTIMIZER:
    name: Momentum
    momentun: 0.9
    parameters: []
    order: third
    learning_rate:
        name: PiecewiseDecay
        values: [0.02, fast]
MODLE: {}
epochs: 1.5
log_level: info
"""


@pytest.mark.smoke
def test_all_problems_at_once_word_for_word(write, root):
    problems = problems_of(write("bad.yaml", BAD), root=root)
    transform = "one name, with its arguments indented below it"
    assert problems == [
        "bad.yaml:28  MODLE: unknown key; did you mean 'MODEL'?",
        "bad.yaml:29  epochs=1.5: expected int, at least 1",
        "bad.yaml:30  log_level='info': expected 'DEBUG' or 'INFO' or 'WARNING' or 'ERROR'",
        "bad.yaml  model_name: missing; expected str",
        "bad.yaml:2  MODEL.framework: unknown recognizer 'Recogniser2D'; did you mean 'Recognizer2D'?",
        "bad.yaml:4  DATASET.batch_size=0: expected int, from 1 to 65536",
        "bad.yaml:5  DATASET.worker: unknown key; did you mean 'num_workers'?",
        "bad.yaml:8  DATASET.train.data_prefix=7: expected str",
        "bad.yaml:9  DATASET.train.pipeline: unknown key for VideoDataset; known: data_prefix, file_path",
        "bad.yaml:6  DATASET.train.file_path: missing for VideoDataset; expected str",
        "bad.yaml:19  PIPELINE.trian: unknown key; did you mean 'train'?",
        "bad.yaml:14  PIPELINE.train.transform.0.Scale.short_size=True: expected int",
        "bad.yaml:15  PIPELINE.train.transform.1={'RandomFlip': None, 'prob': 0.5}: expected " + transform,
        "bad.yaml:17  PIPELINE.train.transform.2: unknown transform 'Blur'; known: RandomFlip, Scale",
        "bad.yaml:18  PIPELINE.train.transform.3.RandomFlip=0.5: expected a mapping of arguments",
        "bad.yaml:22  OPTIMIZER.momentun: unknown key for Momentum; did you mean 'momentum'?",
        "bad.yaml:23  OPTIMIZER.parameters: unknown key for Momentum; "
        "known: learning_rate, momentum, order, weight_decay",
        "bad.yaml:24  OPTIMIZER.order='third': expected 'first' or 'second'",
        "bad.yaml:27  OPTIMIZER.learning_rate.values.1='fast': expected float",
        "bad.yaml:25  OPTIMIZER.learning_rate.boundaries: missing for PiecewiseDecay; expected list of int",
    ]
    assert str(ConfigError(problems)).startswith("20 problems\n  bad.yaml:28  MODLE:")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("MODEL=3", "-o #1  MODEL=3: expected a mapping"),
        ("MODEL=", "-o #1  MODEL: this section is missing"),
        ("MODEL.backbone=ResNet", "-o #1  MODEL.backbone='ResNet': expected a mapping with 'name'"),
        ("MODEL.backbone={depth: 50}", "-o #1  MODEL.backbone: 'name' is missing; known: ResNet, Swin, Wide"),
        ("MODEL.backbone.name=[1]", "-o #1  MODEL.backbone.name=[1]: expected the name of a backbone"),
        ("MODEL.backbone={name: Swin, window: [8, 7]}",
         "-o #1  MODEL.backbone.window=[8, 7]: expected list of 3: int, int, int"),
        ("PIPELINE.train.transform={}",
         "-o #1  PIPELINE.train.transform={}: expected a list of one-key mappings"),
        ("PIPELINE.train=", "a.yaml:8  PIPELINE.train: DATASET.train needs this section"),
        ("OPTIMIZER=", "a.yaml:8  OPTIMIZER: DATASET.train needs this section"),
        ("OPTIMIZER.weight_decay=1", "-o #1  OPTIMIZER.weight_decay=1: expected mapping or null"),
        ("DATASET.max_bad_share=2", "-o #1  DATASET.max_bad_share=2: expected float, from 0 to 1"),
        ("PIPELINE.train.transform.1.RandomFlip.prob=1.5",
         "-o #1  PIPELINE.train.transform.1.RandomFlip.prob=1.5: expected float, from 0 to 1"),
        ("resume_from=x", "-o #1  resume_from: unknown key; did you mean 'resume'?"),
    ],
)  # fmt: skip
def test_single_problems(write, root, override, problem):
    assert problems_of(write("a.yaml"), override, root=root) == [problem]


def test_parts_may_be_null_where_the_constructor_says_so(write, root):
    config = load_config(write("a.yaml"), ["MODEL={framework: Recognizer3D, backbone: null}"], root=root)
    assert config["MODEL"]["backbone"] is None


def test_a_part_may_be_a_plain_value_where_the_constructor_says_so(write, root):
    name = write("a.yaml")
    config = load_config(name, ["OPTIMIZER.learning_rate=0.1"], root=root)
    assert config["OPTIMIZER"]["learning_rate"] == 0.1
    assert problems_of(name, "OPTIMIZER.learning_rate=fast", root=root) == [
        "-o #1  OPTIMIZER.learning_rate='fast': expected float or a mapping with 'name'"
    ]


def test_ignored_arguments_warn_once_and_go(write, root, warnings):
    overrides = ["PIPELINE.train.transform.0.Scale.backend=cv2", "use_xpu=false", "PRECISEBN={interval: 1}"]
    name = write("a.yaml")
    for _ in range(2):
        config = load_config(name, overrides, root=root)
        assert config["PIPELINE"]["train"]["transform"][0] == {"Scale": {"short_size": 256}}
        assert "use_xpu" not in config
        assert "PRECISEBN" not in config
    assert warnings == [
        "-o #2  use_xpu: has no effect: only CPU and GPU are supported",
        "-o #1  PIPELINE.train.transform.0.Scale.backend: has no effect: one resample does it all",
        "-o #3  PRECISEBN: has no effect: not supported yet, training runs without it",
    ]


def test_the_same_ignored_argument_is_one_warning(write, root, warnings):
    scale = "{Scale: {short_size: 1, backend: cv2}}"
    load_config(write("a.yaml"), [f"PIPELINE.train.transform=[{scale}, {scale}, {scale}]"], root=root)
    assert warnings == [
        "-o #1  PIPELINE.train.transform.0.Scale.backend: has no effect (and in 2 more places): "
        "one resample does it all"
    ]


def test_a_config_that_no_file_holds_is_checked_in_place(root, warnings):
    config = Config(
        {"MODEL": {"framework": "Recognizer3D"}, "DATASET": {"batch": 1}, "PIPELINE": {}, "model_name": "x"}
    )
    with pytest.raises(ConfigError) as caught:
        check_config(config, root)
    assert caught.value.problems == [
        "config  epochs: missing; expected int, at least 1",
        "config  DATASET.batch: unknown key; did you mean 'batch_size'?",
    ]
    config.update(epochs=1, DATASET={"shuffle_valid": True})
    check_config(config, root)
    assert config["DATASET"] == {}


# ---


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.annex
@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_committed_reference_is_what_the_code_says(lang):
    page = DOCS / lang / "config_reference.md"
    option = "" if lang == "en" else " --lang zh-CN"
    command = f"python tools/config_reference.py{option} > docs/{lang}/config_reference.md"
    assert page.read_text(encoding="utf-8") == reference(lang), f"type  {command}"


def test_a_small_schema(root):
    text = reference("en", root)
    assert "## MODEL\n\nNames the component with the key `framework`:\n\n### Recognizer2D\n" in text
    assert "| `depth` | int | required | number of layers. |\n" in text
    assert "| `pretrained` | str or null | `null` | weight file; null for none. |\n" in text
    assert "| `backbone` | a backbone, see below | required |  |\n" in text
    assert "| `window` | list of 3: int, int, int | `[8, 7, 7]` |  |\n" in text
    assert "- `backend`: one resample does it all\n" in text
    assert "Accepted without effect: not supported yet, training runs without it.\n" in text
    assert "parameters" not in text, "injected arguments are not for users"
    assert "`pipeline`" not in text
    assert text == reference("en", root)


def test_texts_of_arguments_come_from_class_constructor_and_bases():
    class Base:
        """First.

        Args:
            one: of the base
            two (int): replaced.
            three: kept.

        Raises:
            ValueError: never.
        """

    class Child(Base):
        def __init__(self):
            """Second.

            Args:
                two: of the constructor,
                    in two lines.
                one, three: see `Base`.
                four, five: both.
            """

    assert argument_texts(Child) == {
        "one": "of the base",
        "two": "of the constructor, in two lines.",
        "three": "kept.",
        "four": "both.",
        "five": "both.",
    }
