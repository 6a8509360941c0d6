"""Paddle's profiler in the loop, and PaddleVideo's string of options for it."""

import json
import logging

import paddle
import pytest

from paddlevideo_fast.engine.trainer import TrainingEnds
from paddlevideo_fast.errors import CheckpointError, ConfigError
from paddlevideo_fast.extensions.profiler import profiling as module
from paddlevideo_fast.extensions.profiler.profiling import ProfilerOptions, Profiling

# only the tests in which Paddle itself measures
measures = pytest.mark.skipif(
    paddle.is_compiled_with_cuda() and not paddle.device.cuda.device_count(),
    reason="the profiler of a GPU build of Paddle needs a GPU driver",
)


@pytest.fixture
def measured(tmp_path, make_trainer, caplog):
    """Trains 12 steps with these options; gives the trainer, whether the run ended early, and the log."""

    def run(text, **arguments):
        caplog.set_level(logging.INFO)
        trainer = make_trainer([Profiling(ProfilerOptions.parse(text), tmp_path / "profile")], **arguments)
        try:
            trainer.fit()
            return trainer, False, caplog.text
        except TrainingEnds:
            return trainer, True, caplog.text

    return run


def events(path, name):
    trace = json.loads(path.read_text(encoding="utf-8"), strict=False)
    return [event for event in trace["traceEvents"] if event.get("name", "").startswith(name)]


@measures
@pytest.mark.smoke
def test_a_trace_and_a_table_of_the_steps_and_then_the_end(measured, tmp_path):
    trainer, ended, log = measured("batch_range=[3, 5]; state=CPU")
    assert (ended, trainer.state.step) == (True, 5)
    assert len(events(tmp_path / "profile.json", "ProfileStep")) == 2
    assert len(events(tmp_path / "profile.json", "cross_entropy_with_softmax dygraph")) == 2
    table = (tmp_path / "profile.txt").read_text()
    assert "Operator Summary" in table
    assert "cross_entropy_with_softmax" in table
    assert table.strip() in log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile.json", "profile.txt"]


@measures
def test_a_run_goes_on_behind_the_steps_where_it_is_told_to(measured, tmp_path):
    path = tmp_path / "new" / "model.profile"
    trainer, ended, _ = measured(f"batch_range=[0,1];exit_on_finished=False;profile_path={path}")
    assert (ended, trainer.state.step) == (False, 12)
    assert len(events(path.with_name("model.profile.json"), "ProfileStep")) == 1


@measures
def test_each_rank_has_files_of_its_own(make_trainer, tmp_path):
    options = ProfilerOptions.parse(f"batch_range=[0,1];profile_path={tmp_path}/model")
    with pytest.raises(TrainingEnds):
        make_trainer([Profiling(options, tmp_path, rank=2)]).fit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.rank2.json", "model.rank2.txt"]


@measures
def test_a_run_that_ends_first_gives_what_there_was(measured, tmp_path):
    _, ended, log = measured("batch_range=[10,50]")
    assert not ended
    assert len(events(tmp_path / "profile.json", "cross_entropy_with_softmax dygraph")) == 2
    assert "nothing was measured" not in log


@measures
def test_a_run_that_never_gets_there_says_so(measured, tmp_path):
    _, _, log = measured("batch_range=[12,13]")
    assert "profiler: nothing was measured, the run had 12 steps" in log
    assert list(tmp_path.iterdir()) == []


def test_the_timer_alone_writes_nothing(measured, tmp_path):
    _, ended, log = measured("batch_range=[2,8];timer_only=True")
    assert ended
    assert "batch_cost" in log
    assert list(tmp_path.iterdir()) == []


@measures
def test_a_folder_that_cannot_be_written_is_named(measured, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        measured(f"batch_range=[0,1];profile_path={tmp_path}/file/profile")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", ProfilerOptions()),
        # as in PaddleVideo's TIPC files, on a CPU
        (
            "batch_range=[10,20];state=CPU;tracer_option=Default;profile_path=model.profile",
            ProfilerOptions((10, 20), "CPU", "total", "Default", "model.profile"),
        ),
        (
            "batch_range = (0, 1); sorted_key=ave;tracer_option=AllOpDetail;exit_on_finished=no;timer_only=1",
            ProfilerOptions((0, 1), "All", "ave", "AllOpDetail", "", False, True),
        ),
    ],
)
def test_options_are_read(text, options):
    assert ProfilerOptions.parse(text) == options


def test_all_that_is_wrong_is_told_at_once():
    text = "batch_range=[5,5];stat=CPU;sorted_key=calls;fast;exit_on_finished=maybe;state=GPU"
    with pytest.raises(ConfigError) as error:
        ProfilerOptions.parse(text)
    assert error.value.problems == [
        "-p, profiler_options: batch_range=[5,5]: expected two rising step numbers, such as [10,20]",
        "-p, profiler_options: unknown key 'stat'; did you mean 'state'?",
        "-p, profiler_options: sorted_key=calls: expected total or ave or max or min",
        "-p, profiler_options: 'fast' is no key=value",
        "-p, profiler_options: exit_on_finished=maybe: expected True or False",
        "-p, profiler_options: state=GPU: Paddle computes on the CPU here; use CPU or All",
    ]


def test_a_gpu_build_without_a_gpu_measures_time_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="where there is no GPU; add timer_only=True"):
        Profiling(ProfilerOptions.parse("batch_range=[1,2]"), tmp_path / "profile")
    Profiling(ProfilerOptions.parse("batch_range=[1,2];timer_only=True"), tmp_path / "profile")


@pytest.mark.parametrize("batch_range", ["10", "[1,2,3]", "[-1,2]", "[a,b]", "[20,10]", "[]"])
def test_ranges_that_are_none(batch_range):
    with pytest.raises(ConfigError, match="two rising step numbers"):
        ProfilerOptions.parse(f"batch_range={batch_range}")


@measures
def test_the_options_reach_paddle(monkeypatch, make_trainer, tmp_path):
    made, shown = {}, {}

    class Profiler(paddle.profiler.Profiler):
        def __init__(self, **arguments):
            made.update(arguments)
            super().__init__(**arguments)

        def summary(self, order, **arguments):
            shown.update(arguments, order=order)
            super().summary(order, **arguments)

    monkeypatch.setattr(module.profiler, "Profiler", Profiler)
    text = "batch_range=[0,2];state=CPU;tracer_option=AllOpDetail;sorted_key=max"
    trainer = make_trainer([Profiling(ProfilerOptions.parse(text), tmp_path / "profile")])
    with pytest.raises(TrainingEnds):
        trainer.fit()
    assert made["targets"] == [paddle.profiler.ProfilerTarget.CPU]
    assert made["record_shapes"] is True
    assert shown == {"order": paddle.profiler.SortedKeys.CPUMax, "op_detail": True}
