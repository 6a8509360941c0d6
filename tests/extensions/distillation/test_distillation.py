"""Networks that learn from each other: their losses by hand, what trains, what stays, what is kept."""

import copy

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddlevideo_fast.config import build
from paddlevideo_fast.engine import RoundedPrecision
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.distillation.model import (
    DistillationCELoss,
    DistillationDMLLoss,
    RecognizerDistillation,
)
from paddlevideo_fast.extensions.features.model import HeadOnly
from paddlevideo_fast.modeling import MixedLabels, build_model, load_weights
from paddlevideo_fast.modeling.losses import CrossEntropyLoss
from paddlevideo_fast.registry import RECOGNIZERS
from tests.modeling.networks import normal, section_of

TEACHER, STUDENT = (
    {part: section_of(name, num_seg=4)[part] for part in ("backbone", "head")}
    for name in ("pptsm", "pptsm_v2")
)


def cross_entropy(name, target="GroundTruth", **arguments):
    return {"name": "DistillationCELoss", "model_name_pairs": [name, target], **arguments}


def mutual(*names):
    return {"name": "DistillationDMLLoss", "model_name_pairs": list(names)}


LOSSES = {
    "Train": [
        cross_entropy("Student"),
        cross_entropy("Teacher", loss_weight=0.5),
        mutual("Student", "Teacher"),
    ],
    "Val": [cross_entropy("Student")],
}


def models(teacher="Teacher", student="Student", teacher_head=(), student_head=(), **student_backbone):
    """The two networks under these names, with changes of their parts."""
    first = {**TEACHER, "head": {**TEACHER["head"], **dict(teacher_head)}}
    second = {
        "backbone": {**STUDENT["backbone"], **student_backbone},
        "head": {**STUDENT["head"], **dict(student_head)},
    }
    return {"models": [{teacher: first}, {student: second}]}


SECTION = {"framework": "RecognizerDistillation", **models(), "loss": LOSSES}
LABELS = paddle.to_tensor([0, 2])


def changed(**changes):
    return {**copy.deepcopy(SECTION), **changes}


@pytest.fixture
def clips():
    return normal(2, 4, 3, 32, 32)


def logits(seed, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal((5, 7))).astype("float32")


@pytest.mark.parametrize("act", ["softmax", "sigmoid", None])
def test_mutual_learning_is_paddlevideos(act):
    """Its mean over samples and classes, times the number of classes."""
    values = [logits(seed, 3) for seed in (1, 2)]
    if act is None:
        values = [np.abs(value) for value in values]
    p, q = (paddle.to_tensor(value).astype("float64") for value in values)
    if act is not None:
        p, q = getattr(F, act)(p), getattr(F, act)(q)
    expected = 7 * (p * paddle.log(p / q) + q * paddle.log(q / p)).mean() / 2
    loss = DistillationDMLLoss(["a", "b"], act=act, loss_weight=3.0)
    given = {"a": paddle.to_tensor(values[0]), "b": paddle.to_tensor(values[1])}
    assert float(loss(given, None)) == pytest.approx(3 * float(expected), rel=1e-5)
    assert float(loss({"a": given["a"], "b": given["a"]}, None)) == 0


def test_mutual_learning_stays_finite_where_a_class_is_ruled_out():
    sure = paddle.to_tensor([[500.0, 0.0]], stop_gradient=False)
    loss = DistillationDMLLoss(["a", "b"])({"a": sure, "b": paddle.to_tensor([[0.0, 500.0]])}, None)
    loss.backward()
    assert np.isfinite(float(loss))
    assert np.isfinite(sure.grad.numpy()).all()


def test_cross_entropy_takes_plain_and_mixed_labels():
    value = paddle.to_tensor(logits(1))
    labels = paddle.to_tensor([0, 6, 3, 3, 1])
    mixed = MixedLabels(labels, labels.flip(0), 0.3)
    loss = DistillationCELoss(["a", "GroundTruth"], loss_weight=2.0)
    for target in (labels, mixed):
        assert float(loss({"a": value}, target)) == float(CrossEntropyLoss(2.0)(value, target))


@pytest.mark.smoke
def test_training_gives_all_logits_and_the_sum_of_losses(clips):
    paddle.seed(0)
    model = build_model(SECTION)
    outputs = model(clips)
    assert [output.shape for output in outputs] == [[2, 3], [2, 3]]
    student, teacher = outputs
    parts = [
        CrossEntropyLoss()(student, LABELS),
        0.5 * CrossEntropyLoss()(teacher, LABELS),
        DistillationDMLLoss(["a", "b"])({"a": student, "b": teacher}, None),
    ]
    loss = model.loss(outputs, LABELS)
    assert float(loss) == pytest.approx(float(sum(parts)), rel=1e-6)
    loss.backward()
    assert all(value.grad is not None for value in model.parameters() if not value.stop_gradient)


def test_in_low_precision_the_losses_still_get_float32(clips):
    outputs = RoundedPrecision("O1").forward(build_model(SECTION), clips)
    assert [output.dtype for output in outputs] == [paddle.float32, paddle.float32]


def test_evaluation_is_the_students_alone(clips):
    model = build_model(SECTION)
    model.eval()
    alone = model(clips)
    np.testing.assert_array_equal(alone.numpy(), model.Student(clips).numpy())
    assert float(model.loss(alone, LABELS)) == float(CrossEntropyLoss()(alone, LABELS))
    assert model.num_classes == RecognizerDistillation.classes_of(SECTION) == 3


def test_a_frozen_teacher_does_not_change(clips):
    model = build_model(changed(freeze_params_list=[True, False]))
    model.eval()
    model.train()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    first = model(clips)[1].numpy()
    for _ in range(2):
        outputs = model(clips)
        model.loss(outputs, LABELS).backward()
        optimizer.step()
        optimizer.clear_grad()
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    same = {name for name in after if np.array_equal(after[name], before[name])}
    assert {name for name in after if name.startswith("Teacher.")} <= same
    assert {"Student.backbone.fc.weight", "Student.backbone.stem.0.bn._mean"}.isdisjoint(same)
    np.testing.assert_array_equal(outputs[1].numpy(), first)  # no dropout


def test_learning_rates_of_both_networks():
    assert build_model(SECTION).lr_multipliers == {
        "Student.backbone.global_attention.fc.weight": 5.0,
        "Student.backbone.global_attention.fc.bias": 10.0,
        "Teacher.head.fc.weight": 5.0,
        "Teacher.head.fc.bias": 10.0,
    }


def test_the_student_loads_from_the_checkpoint_and_from_paddlevideos(tmp_path, clips):
    model = build_model(SECTION)
    model.eval()
    student = {"framework": "Recognizer2D", **STUDENT}
    state = model.state_dict()
    paths = {name: tmp_path / f"{name}.pdparams" for name in ("ours", "theirs", "student")}
    paddle.save(state, str(paths["ours"]))
    theirs = {key.replace(".backbone.", ".0.").replace(".head.", ".1."): state[key] for key in state}
    paddle.save(theirs, str(paths["theirs"]))
    alone = {key[len("Student.") :]: value for key, value in theirs.items() if key.startswith("Student.")}
    paddle.save(alone, str(paths["student"]))
    for path in paths.values():
        plain = build_model(student)
        load_weights(plain, path, strict=True)
        plain.eval()
        np.testing.assert_array_equal(plain(clips).numpy(), model(clips).numpy())
    again = build_model(SECTION)
    load_weights(again, paths["theirs"], strict=True)
    assert all(np.array_equal(value.numpy(), state[key].numpy()) for key, value in again.state_dict().items())


def test_both_networks_load_what_they_name(tmp_path):
    model = build_model(SECTION)
    section = copy.deepcopy(SECTION)
    for item in section["models"]:
        (name,) = item
        path = str(tmp_path / f"{name}.pdparams")
        paddle.save(getattr(model, name).backbone.state_dict(), path)
        item[name]["backbone"]["pretrained"] = path
    loaded = build_model(section)
    for name in ("Teacher", "Student"):
        expected = getattr(model, name).backbone.state_dict()
        for key, value in getattr(loaded, name).backbone.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), expected[key].numpy())


def loss_of(part, *losses):
    return {"loss": {**LOSSES, part: list(losses)}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (models(student="Pupil"), "none of Teacher, Pupil is called Student"),
        (models("Student"), r"models.1.Student: a network cannot"),
        (models("loss"), r"models.0.loss: a network cannot"),
        (models("training"), r"models.0.training: a network cannot"),
        (models("_names"), r"models.0._names: a network cannot"),
        ({"freeze_params_list": [True]}, "has 1 items for 2 models"),
        ({"freeze_params_list": [False, True]}, "freezes Student"),
        (loss_of("Train", cross_entropy("Techer")), r"Train.0.*no Techer in it; did you mean 'Teacher'"),
        (loss_of("Val", cross_entropy("Teacher")), r"Val.0.*no Teacher in it"),
        (loss_of("Train"), "Train: is empty"),
        (loss_of("Train", cross_entropy("Student")), "Train: has no loss of Teacher"),
        (loss_of("Train", cross_entropy("Teacher")), "Train: has no loss of Student"),
        (loss_of("Train", cross_entropy("Student", "Teacher")), r"expected \[a model, GroundTruth\]"),
        (loss_of("Train", mutual("Student", "GroundTruth")), "expected two models"),
        (models(teacher_head={"ls_eps": 0.1}), r"models.0.Teacher.head.ls_eps: the losses are in MODEL.loss"),
        (
            models(teacher_head={"loss_cfg": {"name": "FocalLoss"}}),
            r"models.0.Teacher.head.loss_cfg: the losses are in MODEL.loss",
        ),
        (
            models(student_head={"activation": "sigmoid"}),
            r"models.1.Student.head.activation: the losses of distillation compare softmax scores",
        ),
        (
            models(student_head=TEACHER["head"]),
            r"models.1.Student: MODEL.head.name=ppTSMHead: PPTSM_v2 gives logits",
        ),
        (models(class_num=4), "different numbers of classes: Teacher 3, Student 4"),
        ({"loss": {**LOSSES, "Test": []}}, "Test: unknown key"),
    ],
)
def test_what_does_not_fit_is_told(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        build(RECOGNIZERS, changed(**changes))


def test_features_of_several_networks_are_refused():
    with pytest.raises(ConfigError, match="MODEL.framework=RecognizerDistillation: features need"):
        HeadOnly(build_model(SECTION))
