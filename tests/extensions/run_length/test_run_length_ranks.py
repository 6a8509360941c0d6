"""Two processes with half of each batch, and other numbers of tokens, take the steps of one."""

from pathlib import Path

import numpy as np

from tests.support.shared_steps import assert_same_steps, ends_of


def test_two_processes_take_the_steps_of_one(tmp_path):
    ends = ends_of(Path(__file__).with_name("run_length_ranks.py"), tmp_path)
    whole, *of_ranks = (each.pop("num_tokens") for each in ends)
    np.testing.assert_array_equal(whole, np.sum(of_ranks, axis=0))
    assert (of_ranks[0] != of_ranks[1]).any()
    alone, *ranks = ends
    assert_same_steps(alone, ranks)
    assert (alone["start/run_lengths"] != alone["run_lengths"]).any()
