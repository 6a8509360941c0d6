"""Learning-rate functions and phases; the values of the curves are tested with the solver."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import paddlevideo_fast.schedule as schedule
from paddlevideo_fast.schedule import Phase, cosine, linear_warmup, piecewise, plain_phases, relative_steps


@pytest.mark.smoke
def test_functions_at_their_corners():
    assert [piecewise(e, [2, 4], [3, 2, 1]) for e in (0, 1.99, 2, 3.5, 4, 99)] == [3, 3, 2, 2, 1, 1]
    assert cosine(0, 0.4, 10) == pytest.approx(0.4)
    assert cosine(5, 0.4, 10, 0.2) == pytest.approx(0.3)
    assert cosine(10, 0.4, 10, 0.1) == pytest.approx(0.1)
    assert cosine(2.5, 1.0, 10) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert linear_warmup(1, 0.1, 0.5, 4) == pytest.approx(0.2)
    assert [relative_steps(e, 2.0, [1, 0.1, 0.01], [0, 3]) for e in (0, 2.9, 3, 50)] == [2, 2, 0.2, 0.2]


def test_phases():
    (phase,) = plain_phases(12)
    assert (phase.start_epoch, phase.end_epoch, phase.batch_multiplier, phase.bn_splits) == (
        0,
        12,
        1,
        1.0,
    )
    assert phase.num_frames is phase.crop_size is phase.sampling_rate is None
    for wrong in ((3, 3), (-1, 2), (4, 2)):
        with pytest.raises(ValueError, match="not a phase"):
            Phase(*wrong)
    with pytest.raises(ValueError, match="not a phase"):
        plain_phases(0)


def test_nothing_here_imports_paddle():
    for path in Path(schedule.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "paddle"], path
