"""Learning-rate functions and phases; the values of the curves are tested with the solver."""

import ast
import math
from pathlib import Path

import pytest

import paddlevideo_fast.schedule as schedule
from paddlevideo_fast.schedule import Phase, ShortShape, cosine, linear_warmup, piecewise, plain_phases


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
