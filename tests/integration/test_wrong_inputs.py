"""Wrong inputs: one clear message, no traceback, an exit code that is not 0, and earlier output whole."""

import os
import pickle
import re
import resource
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddlevideo_fast.cli import main
from tests.support.launching import overriding
from tests.support.numbered_clips import write_clip
from tests.support.torch_writer import Runs


class Case:
    """The place a case happens in: `arguments` of the command line, and files to spoil."""

    def __init__(self, root, data):
        self.root, self.data = root, data
        self.config = root / "tiny.yaml"
        self.arguments = []

    def add(self, *arguments):
        self.arguments += [argument.replace("{root}", str(self.root)) for argument in arguments]

    def set(self, *overrides):
        self.arguments += overriding(*overrides)

    def edit(self, old, new, *overrides):
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))
        self.set(*overrides)

    def list_of(self, text, split="train"):
        path = self.root / f"{split}.list"
        path.write_text(text.replace("{root}", str(self.root)))
        self.set(f"DATASET.{split}.file_path={path}")

    def video(self, content):
        """A training list of four clips, all this file."""
        path = self.root / "broken.mp4"
        if content is not None:
            path.write_bytes(content)
        self.set("DATASET.train.data_prefix=''")
        self.list_of("".join(f"{path.parent}/./{'./' * i}{path.name} {i}\n" for i in range(4)))


# name: message, overrides
OVERRIDES = {
    "folders_as_videos": (
        r"PIPELINE\.train\.decode\.name=VideoDecoder: opens video files, and FrameDataset lists folders.*\n"
        r".*PIPELINE\.valid\.decode",
        "DATASET.train.format=FrameDataset",
        "DATASET.valid.format=FrameDataset",
    ),
    "frozen_statistics_of_random_weights": (
        r"MODEL\.backbone\.partial_bn: keeps statistics of pretrained weights, and none are loaded",
        "MODEL.backbone.partial_bn=true",
    ),
    "wrong_type": (r"-o #1  MODEL\.backbone\.depth.*int", "MODEL.backbone.depth=fifty"),
    "unknown_component": (
        r"-o #1.*ResNetTSN.*did you mean 'ResNetTSM'",
        "MODEL.backbone={name: ResNetTSN, depth: 18}",
    ),
    "three_problems_at_once": (
        r"3 problems\n.*\n.*\n.*",
        "epochs=0",
        "DATASET.batch_size=many",
        "log_level=LOUD",
    ),
    "override_without_value": (r"-o #1", "epochs"),
    "depth_that_does_not_exist": (r"'?depth'?.*19|19.*depth", "MODEL.backbone.depth=19"),
    "head_that_does_not_fit": (
        r"-o #1  MODEL\.head\.in_channels=64: set it to 32, the channels that the backbone gives",
        "MODEL.head.in_channels=64",
    ),
    "frames_that_the_network_is_not_built_for": (
        r"-o #1  PIPELINE\.train\.sample\.num_seg: clips have 8 frames, and MODEL\.backbone\.num_seg "
        r"\(.*tiny\.yaml:\d+\) is 4; give both the same, as -o num_frames=N does",
        "PIPELINE.train.sample.num_seg=8",
    ),
    "missing_list": (r"no_such\.list", "DATASET.train.file_path=no_such.list"),
    "crop_larger_than_the_frame": (
        r"crop.*64|64.*crop|Crop.*64",
        "PIPELINE.train.transform.0.RandomCrop.target_size=64",
    ),
    "missing_checkpoint": (r"no checkpoint '.*epoch_00007'", "resume_epoch=7"),
    "checkpoint_of_another_model": (
        r"does not fit the model",
        "MODEL.backbone.width=8",
        "MODEL.head.in_channels=64",
        "resume=auto",
        "epochs=2",
    ),
    "missing_pretrained": (
        r"no_such_backbone\.pdparams",
        "MODEL.backbone.pretrained=no_such_backbone.pdparams",
    ),
    "loss_that_turns_nan": (
        r"loss is (nan|inf).*step \d+.*clips \[.*last good checkpoint: .*epoch_0000\d",
        "OPTIMIZER.learning_rate=1e30",
        "resume=auto",
        "epochs=3",
    ),
}
# name: message, the training list
LISTS = {
    "empty_list": (r"train\.list.*(empty|no )", "\n\n"),
    "line_without_a_label": (r"train\.list:2", "a.mp4 0\nb.mp4\n"),
    "label_that_is_no_number": (r"train\.list:1.*one", "a.mp4 one\n"),
    "negative_label": (r"train\.list:1.*-1", "a.mp4 -1\n"),
    "label_out_of_range": (r"train\.list:2.*7.*num_classes", "{root}/a.mp4 0\n{root}/b.mp4 7\n"),
}
# name: message, what each video of the training list holds
VIDEOS = {
    "zero_byte_video": (r"broken\.mp4.*empty|0 bytes", b""),
    "missing_video": (r"broken\.mp4.*no such file", None),
    "text_named_mp4": (r"broken\.mp4: ", b"this is a text file\n" * 40),
    "random_bytes_named_mp4": (r"broken\.mp4: ", np.random.default_rng(0).bytes(4096)),
    "picture_named_mp4": (
        r"broken\.mp4.*picture|still image",
        cv2.imencode(".jpg", np.full((48, 48, 3), 99, np.uint8))[1].tobytes(),
    ),
}
# name: message, further arguments
ARGUMENTS = {
    "one_of_many_processes_alone": (r"--fleet: no launcher has started this process", "--fleet"),
    "missing_weights": (r"none\.pdparams", "-w", "{root}/none.pdparams"),
    "evaluation_without_weights": (
        r"WeightError: 'other' holds no weights: "
        r"train with  paddlevideo-fast train \S+tiny\.yaml  or give .* -w",
        *("--test", "-o", "output_dir=other"),
    ),
    "a_test_of_weights_of_another_class_count": (
        r"num_classes|head\.fc\.weight",
        *("-o", "MODEL.head.num_classes=9", "--test", "-w", "{root}/out/tiny_epoch_00001.pdparams"),
    ),
}
# name: message, what the config says and what it says instead, overrides
EDITS = {
    "broken_yaml": (r"tiny\.yaml:\d+", "{name: CenterCropMetric}", "{name: CenterCropMetric"),
    "typo_in_a_key": (
        r"tiny\.yaml:\d+  OPTIMIZER\.momentun: unknown key for Momentum; did you mean 'momentum'\?",
        *("momentum: 0.9", "momentun: 0.9"),
    ),
    "missing_argument": (r"MODEL\.head\.num_classes: missing", "num_classes: 4, ", ""),
    "problems_of_an_override_and_of_the_file": (
        r"2 problems\n  -o #1  'epochs'.*\n.*tiny\.yaml:\d+  OPTIMIZER\.momentun",
        *("momentum: 0.9", "momentun: 0.9", "epochs"),
    ),
    "bases_in_a_circle": (
        r"_BASE_: files inherit in a circle",
        *("MODEL:\n", "_BASE_: tiny.yaml\nMODEL:\n"),
    ),
}


def case(message):
    def add(function):
        CASES[function.__name__] = (function, message)
        return function

    return add


CASES = {
    **{name: (lambda c, held=held: c.video(held), message) for name, (message, held) in VIDEOS.items()},
    **{name: (lambda c, given=given: c.set(*given), m) for name, (m, *given) in OVERRIDES.items()},
    **{name: (lambda c, given=given: c.edit(*given), m) for name, (m, *given) in EDITS.items()},
    **{name: (lambda c, text=text: c.list_of(text), m) for name, (m, text) in LISTS.items()},
    **{name: (lambda c, given=given: c.add(*given), m) for name, (m, *given) in ARGUMENTS.items()},
}


@case(r"no_such\.yaml")
def missing_config(c):
    c.config = c.root / "no_such.yaml"


@case(r"-o #1  MULTIGRID: epoch_factor 0\.1 leaves none of the 2 epochs")
def a_short_cycle_that_leaves_no_epoch(c):
    c.set("MULTIGRID={SHORT_CYCLE: true, epoch_factor: 0.1}", "multigrid=true", "epochs=2")
    c.set("PIPELINE.train={decode_sampler: {name: DecodeSampler, num_frames: 4, sampling_rate: 1}, "
          "transform: [{RandomCrop: {target_size: 28}}]}")  # fmt: skip
    c.set(
        "OPTIMIZER.learning_rate={name: CustomWarmupPiecewiseDecay, warmup_start_lr: 0.01, warmup_epochs: 0, "
        "step_base_lr: 0.01, lrs: [1], gamma: 0.1, steps: [0], max_epoch: 2}"
    )


@case(r"DATASET\.valid")
def validation_without_data(c):
    lines = c.config.read_text().splitlines(keepends=True)
    c.config.write_text("".join(line for line in lines if not line.startswith("  valid: {format")))


@case(r"broken\.mp4: ")
def truncated_video(c):
    c.video(sorted((c.data / "train").iterdir())[0].read_bytes()[:900])


@case(r"max_bad_share")
def validation_of_nothing_but_bad_files(c):
    c.list_of("".join(f"{{root}}/./{'./' * i}none.mp4 0\n" for i in range(4)), "valid")


@case(r"frames|different shapes|one size")
def clips_of_different_shapes(c):
    write_clip(c.root / "wide.mp4", 8, (64, 32))
    names = sorted((c.data / "train").iterdir())[:3]
    c.set("DATASET.train.data_prefix=''", "PIPELINE.train.transform=[{Image2Array: null}]")
    c.list_of("".join(f"{path} 0\n" for path in [*names, c.root / "wide.mp4"]))


@case(r"bad\.pdparams")
def weights_that_are_no_weights(c, content=b"not a pickle at all"):
    (c.root / "bad.pdparams").write_bytes(content)
    c.add("-w", "{root}/bad.pdparams")


@case(r"bad\.pdparams")
def weights_that_run_code(c):
    weights_that_are_no_weights(c, pickle.dumps({"a": Runs(os.mkdir, str(c.root / "ran"))}))


@case(r"tiny_epoch_00001\.pdopt' is missing or altered")
def cut_off_checkpoint(c):
    path = c.root / "out/tiny_epoch_00001.pdopt"
    path.write_bytes(path.read_bytes()[:1000])
    c.set("resume=auto", "epochs=2")


@case(r"output folder '.*' cannot be written.*output_dir")
def output_folder_that_is_a_file(c):
    (c.root / "file").write_text("")
    c.set(f"output_dir={c.root}/file/out")


def contents(folder: Path):
    """Name and content of every file below, wherever an earlier run was moved to."""
    return [(path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", list(CASES))
def test_wrong_input(name, tmp_path, motion_data, after_run, tiny_config, capfd):
    prepare, message = CASES[name]
    place = Case(tmp_path, motion_data)
    prepare(place)
    before = contents(after_run)
    code = main(["-c", str(place.config), *place.arguments])
    printed = "".join(capfd.readouterr())
    assert code not in (0, None), printed
    assert "Traceback" not in printed
    errors = re.findall(r"^\w+Error: .*", printed, re.M)
    assert len(errors) == 1, printed
    assert re.search(message, printed[printed.index(errors[0]) :]), printed
    after = contents(after_run)
    for file, content in before:
        kept = any(file == name and found.startswith(content) for name, found in after)
        rewritten = file == "config.yaml" or file.startswith("vdlrecords")  # by a run that resumes
        assert kept or rewritten, f"{file} was lost or changed"
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_disk_full_while_saving(tiny_config, tmp_path, after_run, start, run_main):
    """A limit on the size of a file stands for the full disk: the kernel refuses the same write."""
    out = after_run
    before = (out / "tiny_epoch_00001.pdparams").read_bytes()
    full = start(tiny_config, "-o", "resume=auto")
    resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))  # it has yet to read its config
    told = "".join(full.communicate(timeout=120))
    assert full.returncode == 2, told
    assert "cannot be written: File too large" in told
    assert "are whole" in told
    assert "Traceback" not in told
    assert (out / "tiny_epoch_00001.pdparams").read_bytes() == before
    assert not list(out.glob(".saving-*"))
    run_main(tiny_config, "-o", "resume=auto")


def test_one_frame_videos_are_no_error(tiny_config, tmp_path, make_clip, run_main):
    clip = make_clip(tmp_path / "one.mp4", 1, (32, 32))
    (tmp_path / "one.list").write_text(f"{clip} 0\n" * 4)
    listed = f"DATASET.train.file_path={tmp_path}/one.list", "DATASET.train.data_prefix=''"
    run_main(tiny_config, *overriding(*listed, "epochs=1"))


def test_read_only_output_folder_is_named(tmp_path, tiny_config, capfd):
    if os.geteuid() == 0:  # root writes anywhere but to /proc
        folder = "/proc/out"
    else:
        folder = str(tmp_path / "closed")
        os.mkdir(folder, mode=0o500)
    assert main(["-c", str(tiny_config), "-o", f"output_dir={folder}"]) == 2
    assert f"output folder '{folder}' cannot be written" in capfd.readouterr().err
