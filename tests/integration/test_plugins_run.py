"""Runs with components of a user: a transform, a callback and a sink from a file that --import names."""

import json

import pytest

PARTS = """
import os

from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.extensions.trackers.trackers import TRACKERS, Tracker
from paddlevideo_fast.loader.transforms import Pixelwise
from paddlevideo_fast.registry import CALLBACKS, TRANSFORMS


@TRANSFORMS.register()
class WorkersNote(Pixelwise):
    def __init__(self, file: str) -> None:
        self.file = file

    def apply(self, clip, rng):
        with open(self.file, "a") as file:
            file.write(f"{os.getpid()}\\n")


@CALLBACKS.register()
class EpochCounter(Callback):
    def __init__(self) -> None:
        self.seen = []

    def epoch_end(self, trainer):
        self.seen.append([trainer.state.epoch, "top1" in trainer.state.last_validation])
        trainer.state.last_validation["own"] = len(self.seen)

    def state_dict(self):
        return {"seen": self.seen}

    def set_state_dict(self, state):
        self.seen = state["seen"]


@CALLBACKS.register("Second")
class Recorder(Callback):
    pass


@CALLBACKS.register()
class NoCallback:
    pass


@TRACKERS.register()
class LossSink(Tracker):
    def __init__(self, run, name: str = "loss.txt") -> None:
        super().__init__(run)
        self.path = run.folder / name

    def write(self, record):
        if record["kind"] == "valid":
            with self.path.open("a") as file:
                file.write(f"{record['own']}\\n")
"""


@pytest.fixture
def parts(tmp_path):
    path = tmp_path / "my_parts.py"
    path.write_text(PARTS)
    return path


def test_components_from_a_file_train_in_workers_and_are_resumed(tiny_config, tmp_path, run_main, parts):
    note = f"{{WorkersNote: {{file: {tmp_path}/pids}}}}"
    options = [
        *("-o", f"PIPELINE.train.transform=[{{RandomCrop: {{target_size: 28}}}}, {note}]"),
        *("-o", "CALLBACKS=[EpochCounter]", "-o", "TRACKERS=[LossSink: {name: own.txt}]"),
        *("-o", "DATASET.num_workers=2", "--import", str(parts)),
    ]
    run_main(tiny_config, *options, "-o", "epochs=1")
    assert len(set((tmp_path / "pids").read_text().split())) == 2
    run_main(tmp_path / "out" / "config.yaml", "-o", "resume=auto", "-o", "epochs=2")
    state = json.loads((tmp_path / "out" / "tiny_epoch_00002.json").read_text())
    assert state["callbacks"]["EpochCounter"] == {"seen": [[1, True], [2, True]]}  # after the validation
    assert (tmp_path / "out" / "own.txt").read_text().split() == ["1", "2"]  # before the records


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("CALLBACKS=[Second]", "CALLBACKS: a run has one callback of a name, whose state"),
        ("CALLBACKS=[EpochCounter, EpochCounter]", "a checkpoint holds; 2 are EpochCounter"),
        ("CALLBACKS=[NoCallback]", "CALLBACKS.0: NoCallback is no subclass of"),
        ("TRACKERS=[LossSink, LossSink]", "TRACKERS: LossSink is listed 2 times"),
        ("imports=[./no.py]", "no.py cannot be imported: there is no file"),
    ],
)
def test_what_does_not_fit_is_told(tiny_config, assert_refused, parts, option, problem):
    flags = [] if option.startswith("imports") else ["--import", str(parts)]
    assert_refused(tiny_config, problem, option, flags=flags)
