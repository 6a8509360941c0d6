"""What the doctor says of tokens that repeat."""

import numpy as np
import pytest

from paddlevideo_fast.apps.doctor import diagnosis, repeats
from paddlevideo_fast.apps.doctor.report import report
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.loader import Batch

VIT = "{name: VideoMAEViT, embed_dim: 24, depth: 2, num_heads: 3, patch_size: 7}"
HEAD = "{name: VideoMAEHead, num_classes: 8, in_channels: 24}"


@pytest.fixture
def vit(config):
    """A config of a small ViT on clips of four frames of 28 pixels, which are 32 tokens."""
    network = ["MODEL.framework=RecognizerTransformer", f"MODEL.backbone={VIT}", f"MODEL.head={HEAD}"]
    return lambda *overrides: load_config(str(config()), [*network, *overrides])


@pytest.mark.parametrize("section", [[], ["RLT={threshold: 0.4, learned_lengths: 2}"]])
def test_shares_are_those_of_the_clips(vit, section):
    result = diagnosis.examine(vit(*section), steps=2, progress=lambda text: None)
    rows = result["repeated_tokens"]
    assert [row["threshold"] for row in rows] == list(repeats.THRESHOLDS)
    shares = [row["repeated"] for row in rows]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 0.5  # the first of two tubelets stays
    for row in rows:
        assert 1 - 1.2 * row["repeated"] - 1e-9 <= row["work"] <= 1 - row["repeated"] + 1e-9
    (trial,) = [each for each in result["remedies"] if each["name"] == "run-length tokens"]
    assert trial["basis"] == "measured"
    assert trial["gain"] > 0
    lines = report(result).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("run-length tokens (RLT)"))
    numbers = [line.split()[-2:] for line in lines[first + 1 : first + 1 + len(rows)]]
    assert numbers == [[f"{row['repeated']:.0%}", f"{row['work']:.0%}"] for row in rows]


def test_the_trial_leaves_the_network_as_it_was(vit):
    parts = training_setup(plan_run(RunSpec.for_training(vit("RLT.threshold=0.4"))))
    clips = np.zeros((2, 4, 28, 28, 3), np.uint8)
    batch = Batch(clips, np.zeros(2, np.int64), np.arange(2), np.zeros(2, np.int64))
    assert repeats.repeated_tokens(parts, batch)[0] == {
        "threshold": 0.02,
        "repeated": 0.5,
        "work": pytest.approx(0.5, abs=0.1),
    }
    assert repeats.shorter_training(parts, batch, (4, 28, 28, 3)) > 0
    assert parts.model.threshold == 0.4


def test_other_networks_have_no_such_tokens(config):
    result = diagnosis.examine(load_config(str(config())), steps=2, progress=lambda text: None)
    assert "repeated_tokens" not in result
    assert "run-length tokens" not in report(result)
