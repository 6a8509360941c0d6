"""Building blocks shared by the networks."""

from paddlevideo_fast.modeling.layers.conv_bn import ConvBN, ConvBNPlain
from paddlevideo_fast.modeling.layers.portable import activation, portable_operators
from paddlevideo_fast.modeling.layers.squeeze_excitation import SqueezeExcitation
from paddlevideo_fast.modeling.layers.sub_batchnorm import (
    SubBatchNorm2D,
    SubBatchNorm3D,
    restart_splits,
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
)
from paddlevideo_fast.modeling.layers.temporal_shift import temporal_shift, temporal_shift_composed

__all__ = [
    "ConvBN",
    "ConvBNPlain",
    "SqueezeExcitation",
    "SubBatchNorm2D",
    "SubBatchNorm3D",
    "activation",
    "portable_operators",
    "restart_splits",
    "set_num_splits",
    "set_split_statistics",
    "set_sync_group",
    "split_statistics",
    "temporal_shift",
    "temporal_shift_composed",
]
