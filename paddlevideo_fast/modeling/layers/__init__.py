"""Building blocks of the networks; here are those that a network of your own begins with."""

from paddlevideo_fast.modeling.layers.attention import (
    DropPath,
    SelfAttention,
    attend,
    drop_path_rates,
    linear,
)
from paddlevideo_fast.modeling.layers.cpu import Conv3D, LayerNorm, Linear, gelu
