"""Trials of reading forth and back: what counts as right, and the cost of a tree against itself."""

import numpy as np

from benchmarks import reader_trials
from benchmarks.reader_trials import ANOTHER, REFUSED, RIGHT, SPOILT, Given
from paddlevideo_fast.decode import open_video


def test_a_trial_tells_other_frames_and_other_pixels(tmp_path):
    (trial,) = reader_trials.sequence_trials(tmp_path, 1, seed=0)
    assert trial.group == "joined"
    assert reader_trials.outcome_of("ours", trial) == RIGHT
    with open_video(trial.path) as reader:
        count = reader.num_frames
        frames = [reader.read([int(position * count) for position in positions]) for positions in trial.reads]
    for change, outcome in (
        (lambda frame: frame, RIGHT),
        (lambda frame: frame[..., ::-1], SPOILT),  # the number is still read
        (lambda frame: np.full_like(frame, 128), SPOILT),
        (lambda frame: None, REFUSED),
    ):
        changed = [list(read) for read in frames]
        changed[3] = None if change(frames[3][0]) is None else [*map(change, frames[3])]
        assert reader_trials.judge(trial, Given(count, changed)) == outcome
    later = [[*read[1:], frames[0][0]] for read in frames[1:]]
    assert reader_trials.judge(trial, Given(count, [frames[0], *later])) == ANOTHER
