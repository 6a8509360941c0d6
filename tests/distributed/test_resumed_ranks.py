"""Two ranks that stop or die at any place, training, validation or checkpoint, go on as the same run."""

import json
from pathlib import Path

import pytest
import resumed_ranks as ranks

from tests.support.launching import Job


@pytest.mark.slow
def test_two_ranks_go_on_from_every_place(tmp_path):
    with Job([Path(ranks.__file__), tmp_path], 2, tmp_path / "job") as job:
        job.succeed()
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        wrong = {title: text for title, text in found.items() if text}
        assert not wrong, wrong
        assert len(found) >= 30
        assert sum("validation" in title for title in found) == ranks.EPOCHS * ranks.VALID_BATCHES
