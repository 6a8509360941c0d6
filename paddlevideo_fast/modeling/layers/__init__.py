"""Building blocks shared by the networks."""

from paddlevideo_fast.modeling.layers.attention import (
    EncoderBlock,
    SelfAttention,
    attend,
    drop_path_rates,
    linear,
    product_watchers,
    shrink_residuals,
    table,
)
from paddlevideo_fast.modeling.layers.batch_norm import (
    BATCH_NORMS,
    SubBatchNorm2D,
    SubBatchNorm3D,
    aggregate_splits,
    kept_statistics,
    restart_splits,
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
    without_clips,
)
from paddlevideo_fast.modeling.layers.conv_bn import (
    ConvBN,
    ConvBNPlain,
    SqueezeExcitation,
    SqueezeExcitation3D,
    make_divisible,
)
from paddlevideo_fast.modeling.layers.cpu import Conv3D, LayerNorm, Linear, gelu
from paddlevideo_fast.modeling.layers.operators import (
    activation,
    constant,
    frames_of,
    is_traced,
    operators_for,
    temporal_shift,
)
from paddlevideo_fast.modeling.layers.positions import fixed_positions, resized, rotated, rotation
