"""A distillation from the sections of PaddleVideo's YAML: trained, resumed, tested, exported."""

import numpy as np
import pytest
import yaml

from paddlevideo_fast.apps.export.export import export_model
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.assembly.run import train
from paddlevideo_fast.assembly.testing import test as run_test
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import AnnotationError, ConfigError
from paddlevideo_fast.modeling import build_model, read_weights

MODEL = """
    framework: "RecognizerDistillation"
    freeze_params_list:
    - False
    - False
    models:
    - Teacher:
        backbone:
            name: "ResNetTweaksTSM"
            depth: 18
            width: 4
            stage_blocks: [1, 1, 1, 1]
            num_seg: 4
        head:
            name: "ppTSMHead"
            num_classes: 4
            in_channels: 32
            num_seg: 4
    - Student:
        backbone:
            name: "PPTSM_v2"
            scale: 0.25
            num_seg: 4
            use_temporal_att: True
            class_num: 4
        head:
            name: "MoViNetHead"
    loss:
        Train:
            - name: "DistillationCELoss"
              model_name_pairs: ["Student", "GroundTruth"]
            - name: "DistillationCELoss"
              model_name_pairs: ["Teacher", "GroundTruth"]
            - name: "DistillationDMLLoss"
              model_name_pairs: ["Student", "Teacher"]
        Val:
            - name: "DistillationCELoss"
              model_name_pairs: ["Student", "GroundTruth"]
"""


@pytest.fixture
def write(tiny_text, motion_data, tmp_path):
    """Function from a MODEL section to the path of a config with it; its output goes to `tmp_path / name`."""

    def write_config(model, name):
        config = yaml.safe_load(tiny_text.format(data=motion_data, output=tmp_path / name))
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**config, "MODEL": model, "MIX": {"name": "Mixup"}}))
        return path

    return write_config


@pytest.mark.slow
def test_from_training_to_prediction(write, motion_data, tmp_path):
    model = yaml.safe_load(MODEL)
    config = load_config(write(model, "both"), ["max_iters=2", "epochs=1"])
    assert train(config).state.step == 2
    weights = tmp_path / "both/tiny_epoch_00001.pdparams"
    assert {name.split(".")[0] for name in read_weights(weights)} == {"Teacher", "Student"}

    config["weights"] = str(weights)
    tested = run_test(config).metrics
    assert tested["num_samples"] == 8
    student = {"framework": "Recognizer2D", **model["models"][1]["Student"]}
    alone = load_config(write(student, "alone"), [f"weights={weights}"])
    assert run_test(alone).metrics == tested

    files = export_model(config, weights, tmp_path / "inference")
    network = build_model(alone["MODEL"])
    num_bytes = sum(value.nbytes for value in map(np.asarray, network.state_dict().values()))
    assert num_bytes <= files.params.stat().st_size < 1.1 * num_bytes  # the teacher is not in it
    videos, labels = zip(*(line.split() for line in (motion_data / "valid.list").read_text().splitlines()))
    predicted = Predictor(files.program).predict([motion_data / video for video in videos])
    each_loss = [-np.log(found.scores[int(label)]) for found, label in zip(predicted, labels)]
    assert np.mean(each_loss) == pytest.approx(tested["loss"], rel=1e-4)


def test_labels_past_the_students_classes_are_told(write):
    model = yaml.safe_load(MODEL)
    model["models"][1]["Student"]["backbone"]["class_num"] = 2
    model["models"][0]["Teacher"]["head"]["num_classes"] = 2
    with pytest.raises(AnnotationError, match="label"):
        train(load_config(write(model, "few")))


def test_a_wrong_key_inside_is_told_with_its_line(write, tmp_path):
    model = yaml.safe_load(MODEL)
    model["models"][1]["Student"]["backbone"]["num_segs"] = 4
    model["models"][0]["Teacher"]["neck"] = {}
    model["loss"]["Train"][2]["name"] = "DistillationKLLoss"
    path = write(model, "wrong")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    line = next(n for n, x in enumerate(path.read_text().splitlines(), 1) if "num_segs" in x)
    key = "MODEL.models.1.Student.backbone.num_segs"
    assert f"wrong.yaml:{line}  {key}: unknown key for PPTSM_v2; did you mean 'num_seg'?" in text
    assert "MODEL.models.0.Teacher.neck: unknown key" in text
    assert "unknown distillation loss 'DistillationKLLoss'; did you mean 'DistillationDMLLoss'?" in text
