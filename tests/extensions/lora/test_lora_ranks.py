"""Two processes with half of each batch take the steps of one, where matrices of LoRA and the head train."""

from pathlib import Path

from tests.support.shared_steps import assert_same_steps, ends_of


def test_two_processes_take_the_steps_of_one(tmp_path):
    alone, *ranks = ends_of(Path(__file__).with_name("lora_ranks.py"), tmp_path)
    assert_same_steps(alone, ranks)
    matrices = [name for name in alone if name.startswith("start/") and name.endswith((".lora_a", ".lora_b"))]
    assert matrices
    assert all((alone[name.removeprefix("start/")] != alone[name]).any() for name in matrices)
