"""The attentive probe: a head that chooses by attention among the tokens of a clip."""

from functools import partial
from typing import Any

import paddle
from paddle import nn

from paddlevideo_fast.config.types import Count, NonNegative, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.converters import Renames
from paddlevideo_fast.modeling.heads import LinearHead, TokenHead
from paddlevideo_fast.modeling.layers.attention import (
    EncoderBlock,
    SelfAttention,
    attend,
    linear,
    shrink_residuals,
    table,
)
from paddlevideo_fast.registry import HEADS


class CrossAttention(nn.Layer):
    """Multi-head attention of queries to tokens, without a linear layer after it.

    Args:
        channels: of queries and tokens.
        num_heads: must divide `channels`.
    """

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.q = linear(channels, channels)
        self.kv = linear(channels, 2 * channels)

    def forward(self, queries: paddle.Tensor, tokens: paddle.Tensor) -> paddle.Tensor:
        """Queries [N, Q, channels] and tokens [N, L, channels] to [N, Q, channels]."""
        num_queries, channels = queries.shape[1:]
        each = channels // self._num_heads
        query = self.q(queries).reshape([-1, num_queries, self._num_heads, each])
        key, value = self.kv(tokens).reshape([-1, tokens.shape[1], 2, self._num_heads, each]).unbind(2)
        return attend(query, key, value).reshape([-1, num_queries, channels])


class CrossBlock(EncoderBlock):
    """An encoder block whose queries attend to tokens; the first layer norm is of the tokens alone."""

    def forward(self, queries: paddle.Tensor, tokens: paddle.Tensor) -> paddle.Tensor:
        """Queries [N, Q, channels] and tokens [N, L, channels] to [N, Q, channels]."""
        queries = queries + self.attn(queries, self.norm1(tokens))
        return queries + self.mlp(self.norm2(queries))


@HEADS.register()
class AttentiveHead(TokenHead):
    """The attentive probe of V-JEPA 2: self-attention layers, one learned query, the linear layer.

    It takes the tokens of any transformer. Features on disk for it are the tokens of each clip.

    Args:
        depth: self-attention layers before the query's layer.
        num_heads: heads of each attention; must divide `in_channels`.
        mlp_ratio: hidden channels of each perceptron, per channel.
        norm_eps: of the layer norms. Hugging Face's probes have 1e-6, files of the authors 1e-5.

    Raises:
        ConfigError: the heads do not divide the channels.

    References:
        Assran et al., "V-JEPA 2: Self-Supervised Video Models Enable Understanding, Prediction and Planning",
        arXiv 2506.09985, section 5.
        Bardes et al., "Revisiting Feature Prediction for Learning Visual Representations from Video", arXiv
        2404.08471, section 4 (attentive probing).
    """

    data_format = "NLC"

    def __init__(
        self,
        in_channels: Size,
        depth: Count = 3,
        num_heads: Size = 16,
        mlp_ratio: NonNegative = 4.0,
        norm_eps: NonNegative = 1e-6,
        **shared: Any,
    ) -> None:
        super().__init__(in_channels=in_channels, **shared)
        if in_channels % num_heads:
            raise ConfigError(f"MODEL.head.num_heads={num_heads}: does not divide in_channels={in_channels}")
        self.norm_eps = norm_eps
        hidden = round(in_channels * mlp_ratio)
        attention = partial(SelfAttention, in_channels, num_heads)
        self.query_tokens = table(self, 1, 1, in_channels)
        self.blocks = nn.LayerList(
            [EncoderBlock(in_channels, attention, hidden, epsilon=norm_eps) for _ in range(depth)]
        )
        attention = partial(CrossAttention, in_channels, num_heads)
        self.cross = CrossBlock(in_channels, attention, hidden, epsilon=norm_eps)
        shrink_residuals([*self.blocks, self.cross])

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, in_channels] to logits [N, num_classes]."""
        return LinearHead.classify(self, self.attended(pooled))

    def attended(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, in_channels] to the feature that the query finds among them, [N, in_channels]."""
        for block in self.blocks:
            tokens = block(tokens)
        queries = self.query_tokens + paddle.zeros_like(tokens[:, :1])  # for each of N
        return self.cross(queries, tokens)[:, 0]


# Names of the authors' probes, facebookresearch/vjepa2, to ours; see `RenamingConverter.layers`.
PROBE_LAYERS: Renames = (
    (r"pooler\.(query_tokens)", r"head.\1"),
    (r"pooler\.(blocks\.\d+\.(?:norm[12]|attn\.(?:qkv|proj)|mlp\.fc[12]))", r"head.\1"),
    (r"pooler\.cross_attention_block\.(norm[12]|mlp\.fc[12])", r"head.cross.\1"),
    (r"pooler\.cross_attention_block\.xattn\.(q|kv)", r"head.cross.attn.\1"),
)
# Names of Hugging Face's probes, in VJEPA2ForVideoClassification, to the authors'.
HUGGING_FACE_PROBE: Renames = (
    (r"^pooler\.self_attention_layers\.", "pooler.blocks."),
    (r"^pooler\.cross_attention_layer\.", "pooler.cross_attention_block."),
    (r"^(pooler\..+)\.layer_norm([12])\.", r"\1.norm\2."),
    (r"\.self_attn\.\{q_proj,k_proj,v_proj\}\.", ".attn.qkv."),
    (r"\.self_attn\.out_proj\.", ".attn.proj."),
    (r"\.cross_attn\.q_proj\.", ".xattn.q."),
    (r"\.cross_attn\.\{k_proj,v_proj\}\.", ".xattn.kv."),
)
HUGGING_FACE_PROJECTIONS = {
    r"pooler\..+\.self_attn": ("q_proj", "k_proj", "v_proj"),
    r"pooler\..+\.cross_attn": ("k_proj", "v_proj"),
}
