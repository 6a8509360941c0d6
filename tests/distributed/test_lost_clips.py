"""A batch in which nothing decodes: the other ranks' clips count, and nothing else changes."""

from pathlib import Path

import lost_clips_ranks as ranks
import numpy as np
import pytest

from paddlevideo_fast.engine import Distribution
from tests.support.launching import Job


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found, and one process with the batches of both."""
    folder = tmp_path_factory.mktemp("lost")
    with Job([Path(ranks.__file__), folder], 2, folder / "job") as job:
        alone = ranks.train(Distribution(), [0, 1])
        job.succeed()
    return [dict(np.load(folder / f"{rank}.npz")) for rank in (0, 1)], alone


def test_parameters_and_running_statistics_are_those_of_one_process(found):
    both, alone = found
    assert np.abs(np.diff(alone["steps"], axis=0)).max(1)[:3].min() > 1e-3  # there is something to learn
    assert (alone["steps"][3] == alone["steps"][4]).all()  # the last step has no clips
    for rank in both:
        # Paddle rounds a batch norm's momentum to float32; all else agrees to 1e-15
        np.testing.assert_allclose(rank["steps"], alone["steps"], rtol=0, atol=2e-7)
        np.testing.assert_array_equal(rank["steps"][3], rank["steps"][4])


def test_losses_and_bad_files_are_those_of_one_process(found):
    both, alone = found
    assert alone["count"] == 21
    for rank in both:
        assert rank["count"] == alone["count"]
        assert rank["loss"] == pytest.approx(alone["loss"], rel=1e-9)
        assert rank["bad"].tolist() == alone["bad"]
