"""Building blocks shared by the networks."""

from paddlevideo_fast.modeling.layers.conv_bn import ConvBN
from paddlevideo_fast.modeling.layers.temporal_shift import temporal_shift, temporal_shift_composed

__all__ = ["ConvBN", "temporal_shift", "temporal_shift_composed"]
