"""Damaged files give frames or `VideoDecodeError`: no crash, no hang, no frame in the place of another."""

from collections import Counter

import damage
import pytest

NUM_FILES = 2000
RIGHT = ("error", "frames", "unnoticed")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    damage.write_sources(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("on_corrupt", ["raise", "nearest"])
def test_damaged_files(on_corrupt, sources):
    """A bug names the seed: `damage.damaged(folder, seed)` gives the file."""
    verdicts = damage.verdicts_of(sources, range(NUM_FILES), on_corrupt)
    assert [found for found in verdicts if found.outcome not in RIGHT] == []
    outcomes = Counter(found.outcome for found in verdicts)
    assert outcomes["error"] > NUM_FILES // 4  # the damage is damage
    assert outcomes["frames"] > NUM_FILES // 10
    assert outcomes["unnoticed"] < NUM_FILES // 50
    assert (sum(found.replaced for found in verdicts) > 0) == (on_corrupt == "nearest")


def test_what_a_damaged_group_leaves_does_not_spoil_the_next(sources):
    """An MPEG-4 decoder that shows a damaged B picture fails at the next key picture, which is sound."""
    assert damage.verdict(sources, 5466, "nearest").outcome in RIGHT
