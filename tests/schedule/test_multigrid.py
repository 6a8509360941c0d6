"""Curves, phases, and the multigrid schedule: the reference's, with the paper's rules for any settings."""

import ast
import json
import math
from bisect import bisect_right
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import paddlevideo_fast.schedule as schedule
from paddlevideo_fast.errors import ScheduleError
from paddlevideo_fast.schedule import (
    Baseline,
    Phase,
    ShortShape,
    cosine,
    linear_warmup,
    multigrid_schedule,
    piecewise,
    plain_phases,
)

REFERENCE = {
    entry["name"]: entry
    for entry in json.loads((Path(__file__).parent.parent / "reference/multigrid_schedule.json").read_text())
}
BASELINE = Baseline(epochs=239, steps=(0, 94, 154, 196), num_frames=32, crop_size=224, sampling_rate=2)
LONG = [(0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1), (1, 1)]
SHORT = [0.5, 0.5**0.5]
BATCH = 64


def lr_at(schedule, epoch):
    steps = [step.epoch for step in schedule.rate_steps]
    step = schedule.rate_steps[bisect_right(steps, epoch) - 1]
    return 0.1 * 0.1**step.stage * step.multiplier


def lr_at_epochs(schedule, warmup_epochs=34):
    top = lr_at(schedule, warmup_epochs)
    return [
        linear_warmup(epoch, 0.01, top, warmup_epochs) if epoch < warmup_epochs else lr_at(schedule, epoch)
        for epoch in range(schedule.phases[-1].end_epoch)
    ]


@pytest.mark.smoke
def test_both_cycles_are_the_references():
    reference = REFERENCE["slowfast_8x8_stepwise_multigrid"]
    schedule = multigrid_schedule(BASELINE, LONG, SHORT, 1.5)
    assert [[p.batch_multiplier, p.num_frames, p.crop_size, p.end_epoch] for p in schedule.phases] == [
        [*shape, end] for _, shape, end in reference["schedule"]
    ]
    assert [step.epoch for step in schedule.rate_steps] == reference["steps"]
    assert lr_at_epochs(schedule) == pytest.approx(reference["lr_at_epoch"], rel=1e-8)
    for expected in reference["phases"]:
        (phase,) = [p for p in schedule.phases if p.start_epoch == expected["start"]]
        assert (phase.num_frames, phase.crop_size) == (expected["T"], expected["S"])
        assert phase.batch_multiplier * BATCH == expected["B"]
        assert phase.sampling_rate == expected["long_rate"]


def test_the_short_cycle_alone_is_the_references():
    reference = REFERENCE["short_only"]
    schedule = multigrid_schedule(BASELINE, [], SHORT, 1.5)
    (phase,) = schedule.phases
    assert (phase.start_epoch, phase.end_epoch) == (0, reference["max_epoch"])
    assert (phase.num_frames, phase.crop_size, phase.sampling_rate) == (32, 224, 2)
    assert phase.short_cycle == (ShortShape(4, 112), ShortShape(2, 158))
    assert [step.epoch for step in schedule.rate_steps] == reference["steps"]
    assert lr_at_epochs(schedule) == pytest.approx(reference["lr_at_epoch"], rel=1e-8)


def test_the_shapes_of_the_short_cycle():
    schedule = multigrid_schedule(BASELINE, LONG, SHORT, 1.5)
    assert [phase.short_cycle for phase in schedule.phases[:4]] == [
        (ShortShape(2, 112), ShortShape(1, 158)),
        (ShortShape(2, 112), ShortShape(1, 158)),
        (ShortShape(4, 112), ShortShape(2, 158)),
        (ShortShape(4, 112), ShortShape(2, 158)),
    ]


def test_without_any_cycle_it_is_the_baseline():
    schedule = multigrid_schedule(BASELINE, [], [], 1.0)
    (phase,) = schedule.phases
    assert (phase.end_epoch, phase.batch_multiplier, phase.short_cycle) == (239, 1, ())


@pytest.mark.parametrize(("lr_scaling", "power"), [("linear", 1), ("sqrt", 0.5), ("none", 0)])
def test_the_rate_grows_with_the_batch_as_lr_scaling_says(lr_scaling, power):
    paper = multigrid_schedule(BASELINE, LONG, SHORT, 1.5)
    schedule = multigrid_schedule(BASELINE, LONG, SHORT, 1.5, lr_scaling)
    assert schedule.phases == paper.phases
    for step, of_paper in zip(schedule.rate_steps, paper.rate_steps):
        assert (step.epoch, step.stage) == (of_paper.epoch, of_paper.stage)
        assert step.multiplier == pytest.approx(of_paper.multiplier**power)


@pytest.mark.parametrize("long", [LONG, []])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.4, 0.9])
def test_finish_ends_the_run_with_plain_training_and_its_rates(long, share):
    paper = multigrid_schedule(BASELINE, long, SHORT, 1.5)
    schedule = multigrid_schedule(BASELINE, long, SHORT, 1.5, finish=share)
    end = paper.phases[-1].end_epoch
    start = end - max(round(share * end), 1)
    *before, last = schedule.phases
    assert (last.start_epoch, last.end_epoch) == (start, end)
    plain = (last.batch_multiplier, last.num_frames, last.crop_size, last.sampling_rate, last.short_cycle)
    assert plain == (1, 32, 224, 2, ())
    assert before[-1].end_epoch == start
    assert [phase.num_frames for phase in before] == [
        phase.num_frames for phase in paper.phases if phase.start_epoch < start
    ]
    for epoch in range(end):
        if epoch < start:
            assert lr_at(schedule, epoch) == lr_at(paper, epoch)
        else:
            stage = lr_at(schedule, epoch) / 0.1
            assert stage == pytest.approx(0.1 ** round(-math.log10(stage)))  # no multiple of a batch
            assert stage <= lr_at(paper, epoch) / 0.1 * 1.0000001


def test_finish_leaves_the_cycles_an_epoch():
    baseline = Baseline(epochs=2, steps=(0,), num_frames=8, crop_size=40, sampling_rate=4)
    assert len(multigrid_schedule(baseline, [], SHORT, 1.0, finish=0.5).phases) == 2
    with pytest.raises(ScheduleError, match=r"finish 0\.9 leaves no epoch of 2"):
        multigrid_schedule(baseline, [], SHORT, 1.0, finish=0.9)


@st.composite
def settings(draw):
    steps = [0, *sorted(draw(st.sets(st.integers(20, 200), min_size=1, max_size=4)))]
    baseline = Baseline(
        epochs=steps[-1] + draw(st.integers(20, 100)),
        steps=steps,
        num_frames=draw(st.sampled_from([8, 16, 32, 64])),
        crop_size=draw(st.sampled_from([56, 112, 224, 256])),
        sampling_rate=draw(st.sampled_from([1, 2, 4, 8])),
    )
    share = st.sampled_from([0.25, 0.5, 0.5**0.5, 1.0])
    long = draw(st.lists(st.tuples(share, share), min_size=1, max_size=4))
    return baseline, long, draw(st.sampled_from([[], SHORT])), draw(st.sampled_from([0.8, 1.0, 1.5, 2.0]))


@given(settings())
def test_rules_hold_for_any_settings(given_settings):
    baseline, long, short, factor = given_settings
    try:
        schedule = multigrid_schedule(baseline, long, short, factor)
    except ScheduleError as error:
        assume("without any" not in str(error))
        raise
    phases = schedule.phases
    assert phases[0].start_epoch == 0
    assert all(first.end_epoch == second.start_epoch for first, second in zip(phases, phases[1:]))
    assert abs(phases[-1].end_epoch - baseline.epochs * factor) <= 0.5
    volume = baseline.num_frames * baseline.crop_size**2
    for phase in phases:
        wanted = volume / (phase.num_frames * phase.crop_size**2)
        assert abs(phase.batch_multiplier - wanted) <= 0.5
        span = baseline.num_frames * baseline.sampling_rate
        assert phase.num_frames * phase.sampling_rate == pytest.approx(span)
        assert all(shape.crop_size <= phase.crop_size for shape in phase.short_cycle)
    mean_batches = [
        mean(
            round(volume / (phase.num_frames * side**2))
            for side in [*(baseline.crop_size * share for share in short), phase.crop_size]
        )
        for phase in phases
    ]
    # equal steps for each shape of a stage, but for the rounding of two ends to whole epochs
    for first in range(0, len(phases) - 1, len(long)):
        stage = range(first, first + len(long))
        lengths = [phases[i].end_epoch - phases[i].start_epoch for i in stage]
        steps = [length / mean_batches[i] for length, i in zip(lengths, stage)]
        slack = [1 / mean_batches[i] for i in stage]
        assert max(a - s for a, s in zip(steps, slack)) <= min(a + s for a, s in zip(steps, slack)) + 1e-9
    assert len(phases) == (len(baseline.steps) - 1) * len(long) + 1


@pytest.mark.parametrize(
    ("epochs", "last_phase", "rate_steps"),
    [
        (13, (12, 13), [(0, 0, 4), (9, 0, 1), (12, 1, 1)]),  # a phase of one epoch has no middle
        (14, (12, 14), [(0, 0, 4), (10, 0, 1), (12, 0, 1), (13, 1, 1)]),
        (15, (12, 15), [(0, 0, 4), (10, 0, 1), (12, 0, 1), (13, 1, 1)]),
        (17, (13, 17), [(0, 0, 4), (11, 0, 1), (13, 0, 1), (15, 1, 1)]),
    ],
)
def test_the_last_rate_begins_in_the_middle_of_the_last_phase(epochs, last_phase, rate_steps):
    baseline = Baseline(epochs=epochs, steps=(0, 10), num_frames=8, crop_size=40, sampling_rate=4)
    schedule = multigrid_schedule(baseline, [(1, 0.5), (1, 1)], [], 1.0)
    last = schedule.phases[-1]
    assert (last.start_epoch, last.end_epoch) == last_phase
    assert [(step.epoch, step.stage, step.multiplier) for step in schedule.rate_steps] == rate_steps


def test_a_rate_of_one_stage_shares_its_epochs_among_the_shapes_by_equal_steps():
    baseline = Baseline(epochs=70, steps=(0,), num_frames=8, crop_size=40, sampling_rate=4)
    schedule = multigrid_schedule(baseline, [(0.5, 0.7071), (1, 0.7071), (1, 1)], [], 1.0)
    spans = [(phase.start_epoch, phase.end_epoch, phase.batch_multiplier) for phase in schedule.phases]
    assert spans == [(0, 40, 4), (40, 60, 2), (60, 70, 1)]
    assert [(step.epoch, step.stage, step.multiplier) for step in schedule.rate_steps] == [
        *((0, 0, 4), (40, 0, 2), (60, 0, 1)),
    ]
    (only,) = multigrid_schedule(baseline, [(1, 0.5)], [], 0.5).phases
    assert (only.start_epoch, only.end_epoch) == (0, 35)


@pytest.mark.parametrize(
    ("change", "long", "message"),
    [
        ({"steps": ()}, LONG, "must start at 0 and rise"),
        ({"steps": (0, 94, 60)}, LONG, "must start at 0 and rise"),
        ({"steps": (10, 94)}, LONG, "must start at 0 and rise"),
        ({"steps": (0, 94, 239)}, LONG, "before the end at epoch 239"),
        ({}, [(0.01, 1)], "leave 0 frames"),
        ({"crop_size": 4}, [(1, 0.1)], "of 0 pixels"),
        ({}, [(2, 1)], "larger than the baseline's"),
        ({"epochs": 5, "steps": (0, 2, 4)}, LONG, "leave one without any"),
    ],
)
def test_settings_that_make_no_schedule(change, long, message):
    baseline = Baseline(**{**vars(BASELINE), **change})
    with pytest.raises(ScheduleError, match=message):
        multigrid_schedule(baseline, long, SHORT, 1.0)


# --- Learning-rate functions and phases; the values of the curves are tested with the solver


@pytest.mark.smoke
def test_functions_at_their_corners():
    assert [piecewise(e, [2, 4], [3, 2, 1]) for e in (0, 1.99, 2, 3.5, 4, 99)] == [3, 3, 2, 2, 1, 1]
    assert cosine(0, 0.4, 10) == pytest.approx(0.4)
    assert cosine(5, 0.4, 10, 0.2) == pytest.approx(0.3)
    assert cosine(10, 0.4, 10, 0.1) == pytest.approx(0.1)
    assert cosine(2.5, 1.0, 10) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert linear_warmup(1, 0.1, 0.5, 4) == pytest.approx(0.2)


def test_phases():
    assert plain_phases(12) == [Phase(0, 12)]
    (phase,) = plain_phases(12)
    assert (phase.batch_multiplier, phase.bn_splits, phase.bn_sync_devices) == (1, 1, 1)
    assert phase.num_frames is phase.crop_size is phase.sampling_rate is None
    assert phase.shape == "as configured"
    assert plain_phases(12, 4) == [Phase(0, 12, bn_sync_devices=4)]


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        *((0, 0, {}), (3, 3, {}), (-1, 2, {}), (4, 2, {})),
        *((0, 1, {name: 0}) for name in ("batch_multiplier", "bn_splits", "bn_sync_devices")),
        (0, 1, {"bn_splits": 2, "bn_sync_devices": 2}),
    ],
)
def test_spans_without_an_epoch_and_batches_of_nothing_are_no_phase(start, end, numbers):
    with pytest.raises(ValueError, match="not a phase"):
        Phase(start, end, **numbers)


def test_the_shape_of_a_phase_in_words():
    phase = Phase(0, 1, 2, num_frames=8, crop_size=40, sampling_rate=4.0, short_cycle=(ShortShape(4, 20),))
    assert phase.shape == "8 frames at rates up to 4, batch ×8 of 20 px, batch ×2 of 40 px"
    assert phase.steps_in_words(16) == "128 clips of 8×20×20, 32 of 8×40×40, at rates up to 4"


def test_nothing_here_imports_paddle():
    for path in Path(schedule.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "paddle"], path
