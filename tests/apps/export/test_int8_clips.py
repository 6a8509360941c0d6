"""Which clips calibrate an int8 program, which compare it, and what they let pass."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from paddlevideo_fast.apps.export.quantize import ClipsOfVideos, _compared, _is_near


class Listed:
    file_path = "x.list"

    def __init__(self, labels):
        self.records = [SimpleNamespace(labels=(label,)) for label in labels]

    def __len__(self):
        return len(self.records)


ORDERS = {
    "alternating": [number % 2 for number in range(40)],
    "three in turn": [number % 3 for number in range(42)],
    "four in turn": [number % 4 for number in range(40)],
    "one after the other": [number // 10 for number in range(40)],
    "pairs in turn": [number // 2 % 4 for number in range(40)],
    "few of many": [0, 0] + [1] * 38,
}


@pytest.mark.parametrize("order", ORDERS)
def test_both_halves_have_the_classes_of_the_list(order):
    labels = ORDERS[order]
    clips = ClipsOfVideos(Listed(labels), 128, np.asarray)
    assert sorted([*clips.calibrating, *clips.comparing]) == list(range(len(labels)))
    counts = [Counter(labels[number] for number in part) for part in (clips.calibrating, clips.comparing)]
    assert all(abs(counts[0][label] - counts[1][label]) <= 1 for label in set(labels)), counts


@pytest.mark.parametrize("num_videos", [2, 3, 5, 41, 1000])
@pytest.mark.parametrize("num_clips", [1, 2, 7, 128])
def test_no_video_is_taken_twice(num_videos, num_clips):
    clips = ClipsOfVideos(Listed([number % 5 for number in range(num_videos)]), num_clips, np.asarray)
    taken = [*clips.calibrating, *clips.comparing]
    assert len(clips.calibrating) == len(clips.comparing) == min(num_clips, num_videos // 2)
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(num_videos))


def compared(num_clips, num_lost, num_wrong=0):
    """A program in int8 that loses clips, and some on which float32 is wrong, too, against float32."""
    expected = np.tile([0.9, 0.1, 0.0], (num_clips, 1))
    found = expected.copy()
    found[: num_lost + num_wrong] = [0.0, 0.1, 0.9]
    labels = [(0,)] * num_lost + [(1,)] * num_wrong + [(0,)] * (num_clips - num_lost - num_wrong)
    return _compared(found, expected, labels, num_clips)


def test_few_clips_let_no_loss_pass():
    for num_clips in (1, 2, 9):
        assert _is_near(compared(num_clips, 0))
        assert not _is_near(compared(num_clips, 1))
        assert not _is_near(compared(num_clips, 0, num_wrong=num_clips))
    for num_clips, num_lost in ((10, 1), (99, 1), (100, 1), (199, 1), (200, 2), (1000, 10)):
        assert _is_near(compared(num_clips, num_lost))
        assert not _is_near(compared(num_clips, num_lost + 1))
