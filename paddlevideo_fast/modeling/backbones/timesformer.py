"""Vision transformers over the patches of frames: TimeSformer, PP-TimeSformer and TokShift.

Layers have PaddleVideo's names, and timm's ViT uses the same: `blocks.0.attn.qkv`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.config.types import CropSize, FixedFrames, NonNegative, Share, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import Network, Renames, RenamingConverter, Weights
from paddlevideo_fast.modeling.layers.attention import (
    EncoderBlock,
    SelfAttention,
    class_and_patches,
    drop_path_rates,
    linear,
    table,
)
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.layers.positions import resized
from paddlevideo_fast.modeling.stages import HEAD
from paddlevideo_fast.registry import BACKBONES

AttentionType = Literal["divided_space_time", "space_only", "joint_space_time"]


class PatchEmbed(nn.Layer):
    """One token for each patch of a frame; the sublayer `proj` is a convolution as wide as its stride."""

    def __init__(self, in_channels: int, channels: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2D(in_channels, channels, kernel_size=patch_size, stride=patch_size)

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips [N, 3, T, H, W] to tokens [N*T, channels, H / patch_size, W / patch_size]."""
        return self.proj(clips.transpose([0, 2, 1, 3, 4]).reshape([-1, clips.shape[1], *clips.shape[3:]]))


class DividedBlock(EncoderBlock):
    """An encoder block of two attentions: first over time at one place, then over the places of one frame.

    The further sublayers are `temporal_norm1`, `temporal_attn` and `temporal_fc`. The last one starts at 0: a
    network from the weights of an image network begins with frames that do not see each other.

    Reference: Bertasius et al., arXiv 2102.05095, section 3 ("Divided Space-Time Attention").
    """

    def __init__(
        self, channels: int, attention: Callable[[], nn.Layer], hidden: int, *, epsilon: float, **shared: Any
    ) -> None:
        super().__init__(channels, attention, hidden, epsilon=epsilon, **shared)
        self.temporal_norm1 = LayerNorm(channels, epsilon=epsilon)
        self.temporal_attn = attention()
        self.temporal_fc = linear(channels, channels)
        self.temporal_fc.weight.set_value(paddle.zeros([channels, channels]))

    def forward(self, x: paddle.Tensor, num_frames: int = 1) -> paddle.Tensor:
        """Tokens to the same shape.

        Args:
            x: [N, 1 + P * T, channels]: the class token, the first patch in all frames, the second, ...
            num_frames: T.
        """
        cls_token, patches = class_and_patches(x)
        num_tokens, channels = patches.shape[1:]
        times = patches.reshape([-1, num_frames, channels])
        change = self.drop_path(self.temporal_attn(self.temporal_norm1(times)))
        patches = patches + self.temporal_fc(change.reshape([-1, num_tokens, channels]))

        grid = [-1, num_tokens // num_frames, num_frames, channels]
        frames = patches.reshape(grid).transpose([0, 2, 1, 3])
        frames = paddle.concat([cls_token.tile([1, num_frames, 1]).unsqueeze(2), frames], axis=2)
        length = frames.shape[2]
        change = self.drop_path(self.attn(self.norm1(frames.reshape([-1, length, channels]))))
        of_class, of_patches = class_and_patches(change.reshape([-1, num_frames, length, channels]), axis=2)
        cls_token = cls_token + of_class.squeeze(2).mean(axis=1, keepdim=True)
        patches = patches + of_patches.transpose([0, 2, 1, 3]).reshape([-1, num_tokens, channels])

        x = paddle.concat([cls_token, patches], axis=1)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ShiftedBlock(EncoderBlock):
    """An encoder block before each of whose halves parts of the class tokens move to neighbouring frames.

    Reference: Zhang et al., "Token Shift Transformer for Video Classification", arXiv 2108.02432, section 3.
    """

    fold_div: ClassVar[int] = 4  # one channel in four moves to the frame before, one to the frame after

    def forward(self, x: paddle.Tensor, num_frames: int = 1) -> paddle.Tensor:
        """Tokens of frames, [N*T, 1 + P, channels], to the same shape; T is `num_frames`."""
        x = self._shifted(x, num_frames)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = self._shifted(x, num_frames)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _shifted(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        channels = x.shape[2]
        fold = channels // self.fold_div
        tokens, patches = class_and_patches(x)
        tokens = tokens.reshape([-1, num_frames, channels])
        from_next, from_last, stay = tokens.split([fold, fold, channels - 2 * fold], axis=2)
        nothing = paddle.zeros_like(from_next[:, :1])
        from_next = paddle.concat([from_next[:, 1:], nothing], axis=1)
        from_last = paddle.concat([nothing, from_last[:, :-1]], axis=1)
        tokens = paddle.concat([from_next, from_last, stay], axis=2).reshape([-1, 1, channels])
        return paddle.concat([tokens, patches], axis=1)


class FrameTransformer(Backbone):
    """What the vision transformers of this module share: patches, class token, tables of positions, blocks.

    Clips may have any size of at least a patch and any number of frames. For another size than `img_size`, or
    another number than `num_seg`, the tables of positions are interpolated.

    Args:
        pretrained: weights to start from: of this network, or of a ViT for images.
        img_size: side of the clips that the table of positions is for, in pixels.
        patch_size: side of a patch, in pixels.
        in_channels: of the clips.
        embed_dim: channels of a token.
        depth: number of blocks.
        num_heads: heads of each attention.
        mlp_ratio: channels inside a block's perceptron, over `embed_dim`.
        qkv_bias: the layers that make queries, keys and values have biases.
        qk_scale: factor on the products of queries and keys; null: 1 / sqrt(embed_dim / num_heads).
        drop_rate: dropout of tokens after the tables of positions, and after linear layers.
        attn_drop_rate: dropout of the attention's weights.
        drop_path_rate: stochastic depth of the last block; it rises in equal steps from 0 in the first one.
        norm_layer: the kind of the norms.
        epsilon: of the layer norms.
        num_seg: frames of a clip.

    Raises:
        ConfigError: the heads do not divide the channels, or an image is smaller than a patch.
    """

    data_format = "NC"
    has_tokens = True
    num_seg: int
    has_fixed_size = True
    has_batch_norm = False
    no_weight_decay = ("cls_token", "pos_embed", "time_embed")
    injected: ClassVar[tuple[str, ...]] = ("block",)

    def __init__(
        self,
        block: Any,
        pretrained: str | None = None,
        img_size: CropSize = 224,
        patch_size: Size = 16,
        in_channels: Size = 3,
        embed_dim: Size = 768,
        depth: Size = 12,
        num_heads: Size = 12,
        mlp_ratio: NonNegative = 4.0,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        drop_rate: Share = 0.0,
        attn_drop_rate: Share = 0.0,
        drop_path_rate: Share = 0.1,
        norm_layer: Literal["nn.LayerNorm"] = "nn.LayerNorm",
        epsilon: NonNegative = 1e-5,
        num_seg: FixedFrames = 8,
    ) -> None:
        super().__init__()
        side = img_size // patch_size
        if side < 1:
            raise ConfigError(f"MODEL.backbone.img_size={img_size}: smaller than patch_size={patch_size}")
        self.pretrained = pretrained
        self.num_seg = num_seg
        self.out_channels = embed_dim
        self._grid = (side, side)
        self.patch_embed = PatchEmbed(in_channels, embed_dim, patch_size)
        self.cls_token = table(self, 1, 1, embed_dim)
        self.pos_embed = table(self, 1, 1 + side * side, embed_dim)
        self.pos_drop = nn.Dropout(drop_rate)
        attention = partial(
            SelfAttention,
            embed_dim,
            num_heads,
            qkv_bias=qkv_bias,
            scale=qk_scale,
            attention_dropout=attn_drop_rate,
            dropout=drop_rate,
        )
        hidden = int(embed_dim * mlp_ratio)
        self.blocks = nn.LayerList(
            [
                block(embed_dim, attention, hidden, drop_path=rate, dropout=drop_rate, epsilon=epsilon)
                for rate in drop_path_rates(drop_path_rate, depth)
            ]
        )
        self.norm = LayerNorm(embed_dim, epsilon=epsilon)
        self.stage_layers: dict[str, list[str]] = {
            "stem": ["patch_embed", "cls_token", "pos_embed"],
            **{f"block{number + 1}": [f"blocks.{number}"] for number in range(depth)},
            HEAD: ["norm"],
        }

    def tokens(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips [N, 3, T, H, W] to class tokens and patches with their positions, [N*T, 1 + P, channels]."""
        patches = self.patch_embed(clips)
        sizes = tuple(patches.shape[2:])
        x = patches.flatten(2).transpose([0, 2, 1])
        x = paddle.concat([self.cls_token + paddle.zeros_like(x[:, :1]), x], axis=1)
        positions = self.pos_embed
        if sizes != self._grid:
            first, rest = positions[0, :1], resized(positions[0, 1:], self._grid, sizes)
            positions = paddle.concat([first, rest]).unsqueeze(0)
        return self.pos_drop(x + positions)

    def tokens_of_clips(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """What the last block gives, [N * num_frames, L, embed_dim], as [N, num_frames * L, embed_dim]."""
        return self.norm(x).reshape([-1, num_frames * x.shape[1], self.out_channels])

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        if output.ndim != 3:
            return None
        side = self.patch_embed.proj.weight.shape[-1]
        grid = [clips.shape[2], *(each // side for each in clips.shape[3:])]
        return output[:, 1:].reshape([clips.shape[0], *grid, output.shape[2]])

    def adapt_table(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """A table of positions, interpolated to this network's clips."""
        if value.ndim != 3 or value.shape[0] != 1 or value.shape[2] != shape[2]:
            return None
        given = paddle.to_tensor(np.array(value[0], "float32"))
        if name == "time_embed":
            return resized(given, [len(given)], [shape[1]]).unsqueeze(0).numpy()
        side = math.isqrt(max(len(given) - 1, 0))
        if name != "pos_embed" or not side or side * side != len(given) - 1:
            return None
        rest = resized(given[1:], (side, side), self._grid)
        return paddle.concat([given[:1], rest]).unsqueeze(0).numpy()


class TimeSformerConverter(RenamingConverter):
    """The authors' files (facebookresearch/TimeSformer)."""

    classifier = "head"
    layers = (
        (r"(cls_token|pos_embed|time_embed|patch_embed\.proj|norm)", r"\1"),
        (r"(blocks\.\d+\.(?:temporal_)?(?:norm1|attn\.qkv|attn\.proj))", r"\1"),
        (r"(blocks\.\d+\.(?:temporal_fc|norm2|mlp\.fc[12]))", r"\1"),
    )
    renames: Renames = ((r"^(?:module\.)?model\.", ""),)


class HuggingFaceTimeSformerConverter(TimeSformerConverter):
    """TimesformerForVideoClassification of Hugging Face's transformers."""

    renames = (
        (r"^timesformer\.", ""),
        (r"^embeddings\.(?=cls_token)", ""),
        (r"^embeddings\.position_embeddings", "pos_embed"),
        (r"^embeddings\.time_embeddings", "time_embed"),
        (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"^encoder\.layer\.", "blocks."),
        (r"^layernorm\.", "norm."),
        (r"^classifier\.", "head."),
        (r"\.temporal_layernorm\.", ".temporal_norm1."),
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.temporal_dense\.", ".temporal_fc."),
        (r"\.(temporal_)?attention\.attention\.qkv\.", r".\1attn.qkv."),
        (r"\.(temporal_)?attention\.output\.dense\.", r".\1attn.proj."),
        (r"\.intermediate\.dense\.", ".mlp.fc1."),
        (r"\.output\.dense\.", ".mlp.fc2."),
    )


_MMACTION2: Renames = (
    (r"^backbone\.", ""),
    (r"^cls_head\.fc_cls\.", "head."),
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^transformer_layers\.layers\.", "blocks."),
    (r"\.attn\.in_proj_(weight|bias)$", r".attn.qkv.\1"),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.ffns\.0\.norm\.|\.norms\.1\.", ".norm2."),
    (r"\.norms\.0\.", ".norm1."),
    (r"\.ffns\.0\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffns\.0\.layers\.1\.", ".mlp.fc2."),
)
# Where blocks attend in time first; else the only attention, number 0, is the one in space.
_MMACTION2_DIVIDED: Renames = (
    (r"\.attentions\.0\.norm\.", ".temporal_norm1."),
    (r"\.attentions\.0\.attn\.", ".temporal_attn."),
    (r"\.attentions\.0\.temporal_fc\.", ".temporal_fc."),
    (r"\.attentions\.1\.norm\.", ".norm1."),
)


class MMAction2TimeSformerConverter(TimeSformerConverter):
    """TimeSformer of MMAction2."""

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        is_divided = any(".temporal_fc." in name for name in state)
        self.renames = (
            *_MMACTION2,
            *(_MMACTION2_DIVIDED if is_divided else ()),
            (r"\.attentions\.[01]\.attn\.", ".attn."),
        )

    def notes(self) -> Sequence[str]:
        return [
            "this toolkit normalises pictures with mean 0.5 and std 0.5; set both in the Normalization of "
            "PIPELINE's parts"
        ]


class TokShiftConverter(TimeSformerConverter):
    """TokShift of its authors (VideoNetworks/TokShift-Transformer), which has a layer for each projection."""

    renames = (
        (r"^(?:module\.)?(?:base_model\.)?", ""),
        (r"^transformer\.embeddings\.(?=cls_token)", ""),
        (r"^transformer\.embeddings\.position_embeddings", "pos_embed"),
        (r"^transformer\.embeddings\.patch_embeddings\.", "patch_embed.proj."),
        (r"^transformer\.encoder\.encoder_norm\.", "norm."),
        (r"^transformer\.encoder\.layer\.", "blocks."),
        (r"\.attention_norm\.", ".norm1."),
        (r"\.ffn_norm\.", ".norm2."),
        (r"\.ffn\.", ".mlp."),
        (r"\.attn\.\{query,key,value\}\.", ".attn.qkv."),
        (r"\.attn\.out\.", ".attn.proj."),
    )
    projections = {r".+\.attn": ("query", "key", "value")}


@BACKBONES.register()
class VisionTransformer(FrameTransformer):
    """TimeSformer: a ViT whose patches attend to each other in space and time.

    From a ViT for images, the attention in time starts with the weights of the attention in space.

    Args:
        attention_type: "divided_space_time": each block attends in time, then in space. "joint_space_time":
            all patches of all frames attend to each other. "space_only": patches attend to patches of their
            own frame, and the feature is the mean over the frames.

    Reference: Bertasius et al., "Is Space-Time Attention All You Need for Video Understanding?", arXiv
    2102.05095.
    """

    converters = {"huggingface": HuggingFaceTimeSformerConverter, "mmaction2": MMAction2TimeSformerConverter}

    def __init__(self, attention_type: AttentionType = "divided_space_time", **shared: Any) -> None:
        self.attention_type = attention_type
        super().__init__(DividedBlock if attention_type == "divided_space_time" else EncoderBlock, **shared)
        if attention_type != "space_only":
            shape = [1, self.num_seg, self.out_channels]
            self.time_embed = self.create_parameter(shape, is_bias=True)  # of zeros
            self.stage_layers["stem"].append("time_embed")
            self.time_drop = nn.Dropout(shared.get("drop_rate", 0.0))

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, float [N, 3, T, H, W], to one feature each, [N, embed_dim].

        With `data_format` "NLC" to all tokens [N, L, embed_dim]; see `tokens_of_clips`.
        """
        num_frames = clips.shape[2]
        x = self.tokens(clips)
        if self.attention_type != "space_only":
            x = self._with_times(x, num_frames)
        for block in self.blocks:
            x = block(x, num_frames) if self.attention_type == "divided_space_time" else block(x)
        if self.data_format == "NLC":
            return self.tokens_of_clips(x, num_frames if self.attention_type == "space_only" else 1)
        x = x[:, 0]
        if self.attention_type == "space_only":
            x = x.reshape([-1, num_frames, self.out_channels]).mean(axis=1)
        return self.norm(x)

    def _with_times(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Tokens of frames to tokens of clips as `DividedBlock` takes them, with the table of times added."""
        length, channels = x.shape[1:]
        x = x.reshape([-1, num_frames, length, channels])
        times = resized(self.time_embed[0], [self.num_seg], [num_frames])
        cls_token, patches = class_and_patches(x, axis=2)
        patches = self.time_drop(patches.transpose([0, 2, 1, 3]) + times)
        patches = patches.reshape([-1, (length - 1) * num_frames, channels])
        return paddle.concat([cls_token[:, 0], patches], axis=1)

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        if self.attention_type != "space_only" and output.ndim == 3:  # patch by patch, each in all frames
            patches = output[:, 1:].reshape([clips.shape[0], -1, clips.shape[2], output.shape[2]])
            output = paddle.concat([output[:, :1], patches.transpose([0, 2, 1, 3]).flatten(1, 2)], axis=1)
        return FrameTransformer.maps(self, output, clips)

    def fallback_parameter(self, name: str) -> str | None:
        """Attention in time starts as the attention in space."""
        spatial = name.replace(".temporal_attn.", ".attn.").replace(".temporal_norm1.", ".norm1.")
        return None if spatial == name else spatial


@BACKBONES.register()
class VisionTransformer_tweaks(VisionTransformer):
    """PP-TimeSformer: TimeSformer, trained by another recipe."""

    ignored_arguments: ClassVar[dict[str, str]] = {
        "wd_bias": "PaddleVideo takes it without effect; OPTIMIZER says what does not decay",
        "lr_mult_list": "PaddleVideo takes it without effect; FINETUNE has rates by stage",
    }


@BACKBONES.register()
class TokenShiftVisionTransformer(FrameTransformer):
    """TokShift: a ViT over frames; the class tokens of neighbouring frames exchange channels.

    Args:
        attention_type: "space_only": patches attend to patches of their own frame. There is no other kind.

    Reference: Zhang et al., "Token Shift Transformer for Video Classification", arXiv 2108.02432.
    """

    def __init__(self, attention_type: Literal["space_only"] = "space_only", **shared: Any) -> None:
        super().__init__(ShiftedBlock, **shared)

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, float [N, 3, T, H, W], to the mean feature of their frames, [N, embed_dim].

        With `data_format` "NLC" to all tokens [N, L, embed_dim]; see `tokens_of_clips`.
        """
        num_frames = clips.shape[2]
        x = self.tokens(clips)
        for block in self.blocks:
            x = block(x, num_frames)
        if self.data_format == "NLC":
            return self.tokens_of_clips(x, num_frames)
        return self.norm(x[:, 0]).reshape([-1, num_frames, self.out_channels]).mean(axis=1)
