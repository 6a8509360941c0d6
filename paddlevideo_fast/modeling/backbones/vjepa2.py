"""The encoders of V-JEPA 2: plain video ViTs whose attention turns queries and keys by their positions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import paddle

from paddlevideo_fast.config.types import Size
from paddlevideo_fast.modeling.attentive_head import (
    HUGGING_FACE_PROBE,
    HUGGING_FACE_PROJECTIONS,
    PROBE_LAYERS,
    AttentiveHead,
)
from paddlevideo_fast.modeling.backbones.videomae import TubeletConverter, TubeletTransformer
from paddlevideo_fast.modeling.converters import Network, Renames, Weights
from paddlevideo_fast.modeling.layers.attention import SelfAttention, shrink_residuals
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.layers.positions import rotated, rotation
from paddlevideo_fast.modeling.stages import HEAD
from paddlevideo_fast.registry import BACKBONES


class RotaryAttention(SelfAttention):
    """Self-attention whose queries and keys turn by the positions of their tokens."""

    def forward(self, x: paddle.Tensor, turns: paddle.Tensor) -> paddle.Tensor:  # type: ignore[override]
        """Tokens [N, L, channels] to the same shape; `turns` is what `rotation` gives for a head."""
        query, key, value = self.heads(x)
        return self.mixed(rotated(query, turns), rotated(key, turns), value)


class VJEPA2Converter(TubeletConverter):
    """The authors' files (facebookresearch/vjepa2): an encoder, a probe of one, or both.

    A probe is taken where the network's head is an `AttentiveHead`.
    """

    classifier = "linear"
    layers = (
        (r"(patch_embed\.proj|norm)", r"\1"),
        (r"(blocks\.\d+\.(?:norm[12]|attn\.(?:qkv|proj)|mlp\.fc[12]))", r"\1"),
        *PROBE_LAYERS,
    )
    renames: Renames = ((r"^(?:module\.)?(?:backbone\.)?", ""),)
    left_out = "the network's head is another one"
    probe_eps: ClassVar[float] = 1e-5
    unused: ClassVar = {
        r"(?:vjepa2\.)?predictor\..+": "the predictor, which only pre-training needs",
        r"(?:module\.)?(?:backbone\.)?pos_embed": "positions, which the encoder computes",
    }

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        has_probe = any(self.normalized(name).startswith("pooler.") for name in state)
        self.backbone_only = not (has_probe and isinstance(network.head, AttentiveHead))

    def notes(self) -> Sequence[str]:
        if self.backbone_only or self.network.head.norm_eps == self.probe_eps:
            return []
        text = "the layer norms of this toolkit's probes add another number; set MODEL.head.norm_eps"
        return [f"{text}={self.probe_eps:.0e}"]


class HuggingFaceVJEPA2Converter(VJEPA2Converter):
    """VJEPA2Model and VJEPA2ForVideoClassification of Hugging Face's transformers."""

    classifier = "classifier"
    probe_eps = 1e-6
    renames = (
        (r"^(?:vjepa2\.)?encoder\.embeddings\.patch_embeddings\.", "patch_embed."),
        (r"^(?:vjepa2\.)?encoder\.layer\.", "blocks."),
        (r"^(?:vjepa2\.)?encoder\.layernorm\.", "norm."),
        (r"^(blocks\.\d+)\.attention\.\{query,key,value\}\.", r"\1.attn.qkv."),
        (r"^(blocks\.\d+)\.attention\.proj\.", r"\1.attn.proj."),
        *HUGGING_FACE_PROBE,
    )
    projections = {
        r"(?:vjepa2\.)?encoder\.layer\.\d+\.attention": ("query", "key", "value"),
        **HUGGING_FACE_PROJECTIONS,
    }


@BACKBONES.register()
class VJEPA2(TubeletTransformer):
    """The encoder of V-JEPA 2; clips may have any size and length. Its output are tokens.

    Take `AttentiveHead` to probe it as it was published, or `VideoMAEHead` for a linear layer on the mean of
    the tokens. L, H and g have `embed_dim` 1024, 1280 and 1408, `depth` 24, 32 and 40, `num_heads` 16, 16 and
    22; g has `mlp_ratio` 4.3637 (48 / 11).

    Raises:
        ConfigError: the heads do not divide the channels.

    Reference: Assran et al., "V-JEPA 2: Self-Supervised Video Models Enable Understanding, Prediction and
    Planning", arXiv 2506.09985, section 2.
    """

    converters = {"huggingface": HuggingFaceVJEPA2Converter}

    def __init__(self, embed_dim: Size = 1024, depth: Size = 24, num_heads: Size = 16, **shared: Any) -> None:
        super().__init__(embed_dim, depth, num_heads, attention=RotaryAttention, **shared)
        self._num_heads, self._head_channels = num_heads, embed_dim // num_heads
        shrink_residuals(self.blocks)
        self.norm = LayerNorm(embed_dim, epsilon=1e-6)
        self.stage_layers[HEAD] = ["norm"]

    def tokens(self, clips: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        tokens = self.patch_embed(self.patch_embed.tubelets(clips))
        return tokens, rotation(self.grid(clips), self._head_channels, self._num_heads)

    def encode(self, tokens: paddle.Tensor, *positions: paddle.Tensor) -> paddle.Tensor:
        return self.norm(TubeletTransformer.encode(self, tokens, *positions))  # Paddle 2 traces no super()
