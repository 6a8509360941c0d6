"""What each rank of `test_lora_ranks` does: `python lora_ranks.py FOLDER`."""

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np

from paddlevideo_fast.extensions.lora.lora import Lora
from tests.support.rank_steps import NUM_STEPS, train

MODEL = {
    "framework": "Recognizer3D",
    "backbone": {
        "name": "MViT",
        "kv_stride": 2,
        "drop_path_rate": 0.0,
        "num_frames": 4,
        "crop_size": 8,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": 2,
    },
    "head": {"name": "TransformerHead", "num_classes": 5, "in_channels": 16, "drop_ratio": 0.0},
}
OPTIMIZER = {
    "name": "Momentum",
    "momentum": 0.9,
    "learning_rate": 0.1,
    "weight_decay": 0.1,
    "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 0.5},
}

if __name__ == "__main__":
    clips = np.random.default_rng(0).normal(size=(8 * NUM_STEPS, 3, 4, 8, 8)).astype("float32")
    train(MODEL, OPTIMIZER, clips, Lora(rank=2, scale=2.0).add_to)
