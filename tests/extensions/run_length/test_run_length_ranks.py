"""Two processes with half of each batch, and other numbers of tokens, take the steps of one."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.launching import Job


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Parameters before and after training, and the loss: of one process, and of each of two."""
    folder = tmp_path_factory.mktemp("ranks")
    for number in (1, 2):
        script = Path(__file__).with_name("run_length_ranks.py")
        with Job([script, folder], number, folder / f"job{number}") as job:
            job.succeed()
    return [dict(np.load(folder / f"{name}.npz")) for name in ("1_0", "2_0", "2_1")]


def test_two_processes_take_the_steps_of_one(ends):
    whole, *of_ranks = (each.pop("num_tokens") for each in ends)
    np.testing.assert_array_equal(whole, np.sum(of_ranks, axis=0))
    assert (of_ranks[0] != of_ranks[1]).any()
    alone, *ranks = ends
    for rank in ranks:
        for name, value in alone.items():
            # a bias of all keys changes no attention, so what becomes of it is rounding
            size = max(np.abs(value).max(), 1e-3)
            assert np.abs(value - rank[name]).max() < 1e-5 * size, name
    assert (alone["start/run_lengths"] != alone["run_lengths"]).any()
