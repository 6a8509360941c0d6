"""A student that learns from a teacher of another family and clip shape, live and from stored logits."""

import json
import os
import shutil

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.device import upload
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights
from paddlevideo_fast.modeling.weights import read_weights
from tests.support.launching import overriding

TEACHER = {
    "MODEL": {
        "framework": "RecognizerTransformer",
        "backbone": {"name": "VideoMAEViT", "embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 7},
        "head": {"name": "VideoMAEHead", "num_classes": 4, "in_channels": 16},
    },
    "PIPELINE": {name: {"sample": {"num_seg": 8}} for name in ("train", "valid", "test")},
}
SMALL = [{"Scale": {"short_size": 16, "fixed_ratio": False}}, {"CenterCrop": {"target_size": 14}}]


@pytest.fixture(scope="module")
def root(motion_data, tiny_text, tmp_path_factory):
    """A folder with a trained teacher on 8 frames of 28 pixels, and a run of its student on 4 of 14."""
    root = tmp_path_factory.mktemp("teacher")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "student"))
    teacher = {"_BASE_": "tiny.yaml", **TEACHER, "output_dir": str(root / "teacher"), "epochs": 1}
    (root / "teacher.yaml").write_text(json.dumps(teacher))
    assert main(["train", str(root / "teacher.yaml"), "-o", "num_threads=1"]) == 0
    student = {
        "_BASE_": "tiny.yaml",
        "PIPELINE": {
            "train": {"sample": {"num_seg": 8}},
            "valid": {"transform": SMALL},
            "test": {"transform": SMALL},
        },
        "DISTILLATION": {
            "teacher": str(root / "teacher"),
            "student_num_frames": 4,
            "student_crop_size": 14,
            "temperature": 3.0,
            "share": 0.7,
        },
        "MIX": {"name": "Mixup"},
        "save_every_steps": 4,
        "keep_last": None,
        "num_threads": 1,
    }
    (root / "student.yaml").write_text(json.dumps(student))
    assert main(["train", str(root / "student.yaml")]) == 0
    return root


def test_the_loss_is_of_the_teacher_on_its_clips_and_of_the_labels(root):
    config = load_config(root / "student.yaml")
    setup = training_setup(plan_run(RunSpec.for_training(config)))
    trainer = setup.trainer(setup.phase_loader(), [])
    batch = next(iter(setup.split.loader.epoch(0)))
    assert batch.clips.shape == (4, 8, 28, 28, 3)
    teacher = build_model(load_config(root / "teacher.yaml")["MODEL"])
    load_weights(teacher, root / "teacher/tiny_best.pdparams", strict=True)
    teacher.eval()
    targets = F.softmax(teacher(Preprocess(layout="NCTHW")(batch.clips)) / 3.0)

    clips = trainer.preprocess(batch.clips)
    assert clips.shape == [4, 4, 3, 14, 14]
    labels = upload(batch.labels)
    setup.model.eval()  # no dropout
    logits = setup.model(clips)
    soft = F.kl_div(F.log_softmax(logits / 3.0), targets, reduction="batchmean")
    expected = 0.7 * 9 * float(soft) + 0.3 * float(F.cross_entropy(logits, labels))
    assert float(trainer.objective.loss(logits, labels)) == pytest.approx(expected, rel=1e-5)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_run_that_is_resumed_inside_an_epoch_is_the_same_run(root, assert_resumes):
    assert_resumes(root / "student", "tiny_step_00000004", root / "student.yaml")


def test_the_checkpoint_is_the_students_alone(root, run_main, tmp_path):
    weights = root / "student/tiny_best.pdparams"
    plain = build_model(load_config(root / "tiny.yaml")["MODEL"])
    assert read_weights(weights).keys() == plain.state_dict().keys()
    (tmp_path / "no_teacher.yaml").write_text(
        json.dumps({"_BASE_": str(root / "student.yaml"), "DISTILLATION": {"teacher": "gone"}})
    )
    done = run_main(tmp_path / "no_teacher.yaml", "--test", "-w", weights)
    assert "test top1" in done.stderr.replace("test  ", "test ")


def test_a_student_with_lora_learns_from_a_teacher(root, tmp_path):
    """It starts from the teacher's own backbone and keeps it; `average` gives the mean of the networks."""
    lora = {
        "_BASE_": str(root / "student.yaml"),
        "MODEL": {**TEACHER["MODEL"], "runtime_cfg": None},
        "LORA": {"rank": 2},
        "DISTILLATION": {"student_num_frames": None, "student_crop_size": None},
        "PIPELINE": {name: {"sample": {"num_seg": 8}} for name in ("valid", "test")},
        "output_dir": str(tmp_path / "out"),
    }
    lora["MODEL"]["backbone"] = {
        **TEACHER["MODEL"]["backbone"],
        "pretrained": str(root / "teacher/tiny_best.pdparams"),
    }
    (tmp_path / "lora.yaml").write_text(json.dumps(lora))
    assert main(["train", str(tmp_path / "lora.yaml")]) == 0
    assert main(["average", str(tmp_path / "out"), "--last", "2"]) == 0
    mean = tmp_path / "out/tiny_average_last2.pdparams"
    ends = []
    for number in (1, 2):
        student = build_model(lora["MODEL"], load_pretrained=False)
        load_weights(student, tmp_path / f"out/tiny_epoch_0000{number}.pdparams", strict=True)
        ends.append({name: value.numpy() for name, value in student.state_dict().items()})
    weights = read_weights(mean)
    assert weights.keys() == ends[0].keys()
    for name, value in weights.items():
        np.testing.assert_allclose(value, (ends[0][name] + ends[1][name]) / 2, atol=1e-6, err_msg=name)
    assert main(["test", str(tmp_path / "out"), "-w", str(mean)]) == 0


def test_the_average_of_a_students_checkpoints_is_a_students(root, tmp_path):
    out = shutil.copytree(root / "student", tmp_path / "student")
    assert main(["average", str(out), "--last", "2", *overriding(f"output_dir={out}")]) == 0
    mean = out / "tiny_average_last2.pdparams"
    ends = [read_weights(out / f"tiny_epoch_0000{number}.pdparams") for number in (1, 2)]
    for name, value in read_weights(mean).items():
        if name.endswith("weight"):
            np.testing.assert_allclose(value, (ends[0][name] + ends[1][name]) / 2, atol=1e-6)
    assert main(["test", str(root / "student.yaml"), "-w", str(mean), "-o", f"output_dir={tmp_path}"]) == 0


@pytest.fixture(scope="module")
def logits(root):
    """Two copies of the teacher's logits of the 24 training clips; record 5 did not decode in copy 1."""
    words = ["-w", str(root / "teacher/tiny_best.pdparams"), "--views=2", "--logits"]
    assert main(["features", str(root / "teacher.yaml"), *words, "--output", str(root / "logits")]) == 0
    path = root / "logits/train/index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "failed": {"29": ["clip.mp4", "cut"]}}))
    return root / "logits"


def of_logits(folder, *overrides):
    return overriding("DISTILLATION.teacher=null", f"DISTILLATION.logits={folder}", *overrides)


def test_stored_logits_are_what_the_teacher_gives_for_the_clips_of_the_epoch(root, logits):
    """Here both read the same clips, and two copies serve epochs 2 and 3 as they serve epochs 0 and 1."""
    live, stored = (
        training_setup(plan_run(RunSpec.for_training(load_config(root / "student.yaml", overrides))))
        for overrides in ((), of_logits(logits)[1::2])
    )
    outputs, seen = paddle.randn([4, 4]), set()
    for epoch in (0, 1):
        for batch in live.split.loader.epoch(epoch):
            stored.objective.key_clips([(0, epoch + 2, int(index), 0) for index in batch.ids])
            expected = live.objective.logits_of(batch.clips).numpy()
            got = stored.objective._logits.numpy()
            for index, label, row, own in zip(batch.ids, batch.labels, expected, got):
                if (epoch, index) == (1, 5):  # its label takes the place of what did not decode
                    assert (np.flatnonzero(own == 0), own.max()) == (label, 0)
                else:
                    np.testing.assert_allclose(own, row, rtol=1e-4, atol=1e-5)
                seen.add((epoch, index))
            assert np.isfinite(float(stored.objective.loss(outputs, upload(batch.labels))))
    assert len(seen) == 48


def test_a_run_on_stored_logits_is_resumed_as_the_same_run(root, logits, assert_resumes):
    options = [*of_logits(logits), *overriding(f"output_dir={root / 'stored'}")]
    assert main(["train", str(root / "student.yaml"), *options]) == 0
    assert_resumes(root / "stored", "tiny_step_00000004", root / "student.yaml", *options)


def test_wrong_logits_are_told_in_a_sentence(root, logits, assert_refused, tmp_path, motion_data):
    def told(message, folder, *overrides):
        options = of_logits(folder, f"output_dir={tmp_path / 'out'}", *overrides)
        assert_refused(root / "student.yaml", message, flags=options)

    told("there are no features; compute them with", tmp_path / "nowhere")
    told("holds logits of shape [4] for a clip, and MODEL has 5 classes", logits, "MODEL.head.num_classes=5")
    lines = (motion_data / "train.list").read_text().splitlines()[:20]
    (tmp_path / "few.list").write_text("\n".join(lines))
    told("they are of other videos or labels", logits, f"DATASET.train.file_path={tmp_path / 'few.list'}")
    flip = (
        "PIPELINE.train.transform=[{RandomFlip: {swapped_labels: [[0, 1]]}}, {RandomCrop: {target_size: 28}}]"
    )
    told("stored logits do not say which clips are mirrored", logits, flip)
    index = json.loads((logits / "train/index.json").read_text())
    index["recipe"]["kind"] = "features"
    shutil.copytree(logits, tmp_path / "features")
    (tmp_path / "features/train/index.json").write_text(json.dumps(index))
    told("holds features, and DISTILLATION.logits needs logits", tmp_path / "features")
    for name, order in (
        ("names", ["left", "right", "up", "down"]),
        ("moved", ["up", "left", "down", "right"]),
    ):
        (tmp_path / f"{name}.txt").write_text("".join(f"{each}\n" for each in order))
    words = ["-w", str(root / "teacher/tiny_best.pdparams"), "--logits", "--output", str(tmp_path / "named")]
    names = overriding(f"DATASET.class_names={tmp_path / 'names.txt'}")
    assert main(["features", str(root / "teacher.yaml"), *words, *names]) == 0
    moved = f"DATASET.class_names={tmp_path / 'moved.txt'}"
    told("class 0 was 'left' and is 'up'", tmp_path / "named", moved)


def test_a_replaced_video_makes_stored_logits_stale(root, logits, motion_data, tmp_path, run_main):
    """One other file is an error; a set whose files are all others, as a prepared one's are, is a warning."""
    shutil.copytree(motion_data, tmp_path / "data")  # with the times of the files
    options = [
        *of_logits(logits, f"output_dir={tmp_path / 'out'}", "epochs=1", "max_iters=1", "validate=false"),
        *overriding(f"DATASET.train.data_prefix={tmp_path / 'data'}"),
    ]
    assert "have changed" not in run_main(root / "student.yaml", *options).stderr
    first, second = sorted((tmp_path / "data/train").iterdir())[:2]
    shutil.copyfile(second, first)
    refused = run_main(root / "student.yaml", *options, code=2)
    assert f"train/{first.name} was " in refused.stderr
    assert "these features are stale" in refused.stderr
    for file in (tmp_path / "data/train").iterdir():
        os.utime(file, (1, 1))
    assert "all 24 files have changed since" in run_main(root / "student.yaml", *options).stderr


def test_wrong_teachers_are_told_in_a_sentence(root, assert_refused, tmp_path):
    config = root / "student.yaml"

    def told(message, *overrides):
        assert_refused(config, message, f"output_dir={tmp_path / 'out'}", *overrides)

    told("this config of the teacher is wrong", "DISTILLATION.teacher=nowhere")
    told("needs one of the two: teacher, or the logits", "DISTILLATION.teacher=null")
    told("MODEL has 5; train a teacher on the same classes", "MODEL.head.num_classes=5")
    told("they do not fit the teacher", f"DISTILLATION.teacher_weights={root / 'student/tiny_best.pdparams'}")
    told("the teacher takes clips of 8 frames, and PIPELINE.train makes 4", "PIPELINE.train.sample.num_seg=4")
    told("clips of PIPELINE.train have 28 pixels", "DISTILLATION.student_crop_size=32")
    untrained = tmp_path / "untrained.yaml"
    untrained.write_text(
        json.dumps({"_BASE_": str(root / "teacher.yaml"), "output_dir": str(tmp_path / "no")})
    )
    told("DISTILLATION.teacher_weights: is missing", f"DISTILLATION.teacher={untrained}")
    names = "".join(f"{name}\n" for name in ("up", "left", "down", "right"))
    (tmp_path / "names.txt").write_text(names)
    (root / "teacher/class_names.txt").write_text("left\nright\nup\ndown\n")
    told("the classes are not those of", f"DATASET.class_names={tmp_path / 'names.txt'}")
