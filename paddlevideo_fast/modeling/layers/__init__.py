"""Building blocks shared by the networks."""

from paddlevideo_fast.modeling.layers.batch_norm import (
    BATCH_NORMS,
    SubBatchNorm2D,
    SubBatchNorm3D,
    kept_statistics,
    restart_splits,
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
    without_clips,
)
from paddlevideo_fast.modeling.layers.conv_bn import ConvBN, ConvBNPlain, SqueezeExcitation
from paddlevideo_fast.modeling.layers.operators import (
    activation,
    inference_operators,
    portable_operators,
    temporal_shift,
)

__all__ = [
    "BATCH_NORMS",
    "ConvBN",
    "ConvBNPlain",
    "SqueezeExcitation",
    "SubBatchNorm2D",
    "SubBatchNorm3D",
    "activation",
    "inference_operators",
    "kept_statistics",
    "portable_operators",
    "restart_splits",
    "set_num_splits",
    "set_split_statistics",
    "set_sync_group",
    "split_statistics",
    "temporal_shift",
    "without_clips",
]
