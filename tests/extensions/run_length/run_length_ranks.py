"""What each rank of `test_run_length_ranks` does: `python run_length_ranks.py FOLDER`."""

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from tests.support.rank_steps import NUM_STEPS, train

MODEL = {
    "framework": "RunLengthRecognizer",
    "threshold": 0.1,
    "learned_lengths": 2,
    "backbone": {"name": "VJEPA2", "embed_dim": 12, "depth": 2, "num_heads": 2, "patch_size": 4},
    "head": {"name": "AttentiveHead", "num_classes": 5, "in_channels": 12, "depth": 1, "num_heads": 2},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.1, "weight_decay": 0.1}


def half_still():
    """Random clips with squares that stand still."""
    rng = np.random.default_rng(0)
    clips = rng.normal(size=(8 * NUM_STEPS, 3, 4, 8, 8)).astype("float32")
    still = rng.random((len(clips), 1, 1, 2, 1, 2, 1)) < 0.5
    squares = clips.reshape(-1, 3, 4, 2, 4, 2, 4)
    return np.where(still, squares[:, :, :1], squares).reshape(clips.shape)


def num_tokens(model, loader):
    packings = [model.packing(paddle.to_tensor(batch.clips)) for batch in loader.epoch(0)]
    return {"num_tokens": [sum(packing.lengths) for packing in packings]}


if __name__ == "__main__":
    train(MODEL, OPTIMIZER, half_still(), measure=num_tokens)
