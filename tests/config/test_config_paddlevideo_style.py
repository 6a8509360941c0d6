"""A config as PaddleVideo's users have it loads as it is, builds, and says what has no effect."""

from pathlib import Path

import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine.callbacks import PreciseBN
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.solver import build_optimizer

FLAT = Path(__file__).with_name("data_flat.yaml")


@pytest.mark.smoke
def test_it_loads_and_names_what_has_no_effect(warnings):
    config = load_config(FLAT)
    check_evaluation(RunSpec.for_training(config), "train", "valid", "test")
    without_effect = [line.split("  ")[1].split(":")[0] for line in warnings]
    assert without_effect == [
        "use_xpu",
        "DATASET.test.test_mode",
        "PIPELINE.train.transform.0.Scale.backend",
        "PIPELINE.train.transform.1.MultiScaleCrop.backend",
        "PIPELINE.train.transform.5.Normalization.tensor_shape",
        "INFERENCE",
    ]
    assert config["OPTIMIZER"]["weight_decay"]["value"] == 1e-4
    assert config["PIPELINE"]["valid"]["decode"] == {"name": "VideoDecoder", "backend": "decord"}
    spec = RunSpec.of(config)
    assert spec.run.output_dir == "output/data_flat"
    assert spec.accumulate_steps() == 4
    assert spec.extension(PreciseBN) == PreciseBN(preciseBN_interval=5, num_iters_preciseBN=200)


def test_the_saved_form_has_nothing_left_to_warn_about(tmp_path, warnings):
    config = load_config(FLAT)
    config.save(tmp_path / "config.yaml")
    warnings.clear()
    assert load_config(tmp_path / "config.yaml") == config
    assert warnings == []


def test_model_and_optimizer_come_from_it():
    config = load_config(FLAT, ["MODEL.backbone.width=8", "MODEL.head.in_channels=64"])
    model = build_model(config["MODEL"])
    optimizer, curve = build_optimizer(config["OPTIMIZER"], model)
    assert model.num_classes == 101
    assert optimizer.get_lr() == pytest.approx(curve.at(0)) == pytest.approx(0.005)


def test_a_section_that_is_there_twice_loads(tmp_path, warnings):
    """As in PaddleVideo's config of the MobileNetV2."""
    text = FLAT.read_text()
    path = tmp_path / "twice.yaml"
    repeated = text[text.index("INFERENCE:") :].split("\n\n")[0]
    path.write_text(f"{text}\n{repeated}\n")
    assert load_config(path) == load_config(FLAT)
    (twice,) = [line for line in warnings if "written twice" in line]
    first, again = (text.count("\n", 0, text.index("INFERENCE:")) + 1, text.count("\n") + 2)
    assert twice == f"{path}:{again}  INFERENCE: written twice, alike, first in line {first}"


QUANTIZATION = """
DATASET:
    batch_size: 1
    batch_nums: 10
    num_workers: 0
    quant: {format: "FrameDataset", data_prefix: "rawframes", file_path: "val.list"}
PIPELINE:
    quant:
        decode: {name: "FrameDecoder"}
inference_model_dir: "../../inference/ppTSM"
quant_output_dir: "../../inference/ppTSM/quant_model"
model_name: "ppTSM"
"""


def test_a_config_of_quantization_is_told_what_it_is(tmp_path):
    path = tmp_path / "quantization.yaml"
    path.write_text(QUANTIZATION)
    with pytest.raises(ConfigError, match=r"yaml:6  DATASET.quant: this is a config of post-training quant"):
        load_config(path)
