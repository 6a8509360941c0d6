"""Two processes with half of each batch take the steps of one, where matrices of LoRA and the head train."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.launching import Job


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Parameters before and after training, and the loss: of one process, and of each of two."""
    folder = tmp_path_factory.mktemp("ranks")
    for number in (1, 2):
        with Job([Path(__file__).with_name("lora_ranks.py"), folder], number, folder / f"job{number}") as job:
            job.succeed()
    return [dict(np.load(folder / f"{name}.npz")) for name in ("1_0", "2_0", "2_1")]


def test_two_processes_take_the_steps_of_one(ends):
    alone, *ranks = ends
    for rank in ranks:
        for name, value in alone.items():
            # a bias of all keys changes no attention, so what becomes of it is rounding
            size = max(np.abs(value).max(), 1e-3)
            assert np.abs(value - rank[name]).max() < 1e-5 * size, name
    matrices = [name for name in alone if name.startswith("start/") and name.endswith((".lora_a", ".lora_b"))]
    assert matrices
    assert all((alone[name.removeprefix("start/")] != alone[name]).any() for name in matrices)
