"""What each rank of `test_run_length_ranks` does: `python run_length_ranks.py FOLDER`."""

from __future__ import annotations

import sys

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.modeling import build_model
from tests.support.shared_steps import distribution_of_rank, random_clips, share_of, train_share

MODEL = {  # without anything at random in a step
    "framework": "RunLengthRecognizer",
    "threshold": 0.1,
    "learned_lengths": 2,
    "backbone": {"name": "VJEPA2", "embed_dim": 12, "depth": 2, "num_heads": 2, "patch_size": 4},
    "head": {"name": "AttentiveHead", "num_classes": 5, "in_channels": 12, "depth": 1, "num_heads": 2},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.1, "weight_decay": 0.1}


def clips_with_still_squares() -> np.ndarray:
    """Random clips, float32 [80, 3, 4, 8, 8], in which half of the squares of 4×4 stand still."""
    clips = random_clips()
    still = np.random.default_rng(2).random((len(clips), 1, 1, 2, 1, 2, 1)) < 0.5
    squares = clips.reshape(-1, 3, 4, 2, 4, 2, 4)
    return np.where(still, squares[:, :, :1], squares).reshape(clips.shape)


if __name__ == "__main__":
    distribution = distribution_of_rank()
    paddle.seed(11)
    model = build_model(MODEL)
    clips = clips_with_still_squares()
    batches = share_of(clips, distribution).epoch(0)
    num_tokens = [sum(model.packing(paddle.to_tensor(batch.clips)).lengths) for batch in batches]
    train_share(model, OPTIMIZER, clips, distribution, sys.argv[1], num_tokens=num_tokens)
