"""What each rank of `test_lora_ranks` does: `python lora_ranks.py FOLDER`."""

from __future__ import annotations

import sys

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import paddle

from paddlevideo_fast.extensions.lora.lora import Lora
from paddlevideo_fast.modeling import build_model
from tests.support.shared_steps import distribution_of_rank, random_clips, train_share

MODEL = {  # without anything at random in a step
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
    distribution = distribution_of_rank()
    paddle.seed(11)
    model = build_model(MODEL)
    Lora(rank=2, scale=2.0).add_to(model)
    train_share(model, OPTIMIZER, random_clips(), distribution, sys.argv[1])
