"""What only shows is broken in every way here: the run goes on, with one warning."""

from pathlib import Path

import pytest

from paddlevideo_fast.engine import CheckpointStore
from paddlevideo_fast.engine.callbacks import (
    Callback,
    Checkpointing,
    Complexity,
    Evaluation,
    Recorder,
)
from paddlevideo_fast.engine.guard import call_hook
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.progress import bar
from paddlevideo_fast.extensions.report import ReportedRun
from paddlevideo_fast.extensions.report.results import Reporting
from paddlevideo_fast.extensions.trackers.trackers import TrackedRun, VisualDL
from paddlevideo_fast.metrics import CenterCropMetric
from paddlevideo_fast.modeling import MacCounter, complexity


@pytest.fixture
def warnings_of(make_trainer, caplog):
    """Trains with callbacks; returns the warnings of a run that has taken all its steps."""

    def train(callbacks):
        trainer = make_trainer(callbacks, epochs=2)
        assert trainer.fit().step == 12
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    return train


def broken(*args, **options):
    raise ValueError("out of order")


@pytest.mark.parametrize("method", ["open", "write", "close"])
@pytest.mark.parametrize("kind", [ConsoleSink, JsonLinesSink, VisualDL])
def test_a_sink_that_fails_is_left_out(warnings_of, tmp_path, monkeypatch, kind, method):
    records = tmp_path / "records.jsonl"
    own = {ConsoleSink: [], JsonLinesSink: [tmp_path / "own"], VisualDL: [TrackedRun("own", tmp_path, {})]}
    sink = kind(*own[kind])
    monkeypatch.setattr(sink, method, broken)
    found = warnings_of([Recorder([sink, JsonLinesSink(records)], interval=1)])
    assert found == [f"{kind.__name__} fails and is left out, the run goes on: ValueError: out of order"]
    assert len(records.read_text().splitlines()) == 14  # the sinks behind it get everything


def test_a_sink_that_failed_is_tried_again_in_the_next_run(tmp_path, monkeypatch):
    sink = JsonLinesSink(tmp_path / "records.jsonl")
    hooks = [("open", (0, 0)), ("write", ({"kind": "train"},)), ("close", ())]
    with monkeypatch.context() as patch:
        patch.setattr(sink, "write", broken)
        for hook, args in hooks:
            call_hook([sink], hook, *args)
    for hook, args in hooks:
        call_hook([sink], hook, *args)
    assert sink.path.read_text() == '{"kind": "train"}\n'


HOOKS = ["fit_begin", "epoch_begin", "step_end", "epoch_end", "fit_end", "close"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_callback_that_only_shows_is_left_out(warnings_of, monkeypatch, hook):
    calls = []

    class Showing(Callback):
        non_critical = True

        def close(self):
            calls.append("close")

    def fail(*args):
        calls.append(hook)
        broken()

    callback = Showing()
    monkeypatch.setattr(callback, hook, fail)
    assert len(warnings_of([callback])) == 1
    assert calls == list(dict.fromkeys([hook, "close"]))


@pytest.mark.parametrize("hook", ["before_evaluation", "after_evaluation", "before_checkpoint"])
def test_hooks_around_evaluations_and_checkpoints(warnings_of, monkeypatch, tmp_path, hook):
    class Showing(Callback):
        non_critical = True

    class Evaluated:
        def run(self, *args):
            return {"top1": 1.0}

    callback = Showing()
    monkeypatch.setattr(callback, hook, broken)
    store = CheckpointStore(tmp_path, "m")
    evaluation = Evaluation(Evaluated(), CenterCropMetric(), 1, store)
    (found,) = warnings_of([callback, evaluation, Checkpointing(store)])
    assert "Showing fails and is left out" in found


def test_all_are_closed_where_one_cannot_be(make_trainer, caplog):
    closed = []

    class Broken(Callback):
        close = broken

    class Last(Callback):
        def close(self):
            closed.append("last")

    with pytest.raises(ValueError, match="out of order"):
        make_trainer([Broken(), Broken(), Last()]).fit()
    assert closed == ["last"]
    assert sum("cannot be closed: Broken" in text for text in caplog.messages) == 2


def test_the_error_of_a_training_counts_more_than_those_of_closing(make_trainer):
    class Broken(Callback):
        close = broken

        def step_end(self, trainer):
            raise KeyError("of the training")

    with pytest.raises(KeyError, match="of the training"):
        make_trainer([Broken()]).fit()


def test_a_callback_that_trains_still_ends_the_run(make_trainer):
    class Training(Callback):
        step_end = broken

    with pytest.raises(ValueError, match="out of order"):
        make_trainer([Training()]).fit()


def test_the_count_of_a_clip_may_fail(make_trainer, warnings_of, monkeypatch):
    class Counted(Complexity):
        def step_begin(self, trainer):
            self._counter = MacCounter(trainer.model)
            super().step_begin(trainer)

    monkeypatch.setattr(complexity, "_CONVOLUTIONS", ())  # no place for a linear layer's shape
    monkeypatch.setattr(complexity.math, "prod", broken)
    (found,) = warnings_of([Counted(MacCounter(make_trainer().model))])
    assert "Counted fails" in found


def test_the_bar_may_fail(warnings_of, monkeypatch):
    monkeypatch.setattr(bar, "tqdm", broken)
    (found,) = warnings_of([bar.ProgressBar()])
    assert "ProgressBar fails" in found


def test_a_report_that_fails_is_left_out(warnings_of, tmp_path):
    run = ReportedRun("name", Path(tmp_path), "")
    board = VisualDL(TrackedRun("name", tmp_path, {}))  # not open
    store = CheckpointStore(tmp_path, "name")
    (found,) = warnings_of([Reporting(run, None, None, None, None, store, [board])])
    assert "Reporting fails and is left out, the run goes on: TypeError" in found


def test_what_a_user_can_put_right_is_told_before_the_first_step():
    class Missing(ConsoleSink):
        def open(self, step, epoch):
            raise PaddleVideoFastError("pip install it")

    with pytest.raises(PaddleVideoFastError, match="pip install it"):
        call_hook([Missing()], "open", 0, 0)
