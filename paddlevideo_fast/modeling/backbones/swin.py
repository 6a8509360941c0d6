"""Video Swin Transformer: attention in windows of the clip, in four stages of ever fewer tokens.

Layers have PaddleVideo's and the authors' names: `layers.0.blocks.1.attn.qkv`, `layers.0.downsample`.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import NonNegative, Share, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import Network, RenamingConverter, Weights
from paddlevideo_fast.modeling.freezing import set_frozen
from paddlevideo_fast.modeling.layers.attention import (
    EncoderBlock,
    SelfAttention,
    drop_path_rates,
    linear,
    table,
)
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.layers.positions import resized
from paddlevideo_fast.modeling.layers.windows import Box, PatchEmbed, Windows, box, relative_positions
from paddlevideo_fast.registry import BACKBONES

_TABLE = "relative_position_bias_table"


class WindowAttention(SelfAttention):
    """Attention among the tokens of a window, with a learned bias for each offset between two tokens."""

    def __init__(self, window: Box, channels: int, num_heads: int, **shared: Any) -> None:
        super().__init__(channels, num_heads, **shared)
        self._window = window
        self.relative_position_bias_table = table(self, math.prod(2 * side - 1 for side in window), num_heads)

    def bias(self, num_tokens: int) -> paddle.Tensor:
        """The biases of all pairs of tokens of a window, [heads, tokens, tokens]."""
        rows = relative_positions(self._window, num_tokens)
        bias = paddle.index_select(self.relative_position_bias_table, rows)
        return bias.reshape([num_tokens, num_tokens, self.num_heads]).transpose([2, 0, 1])


class SwinBlock(EncoderBlock):
    """An encoder block over the windows of a grid of tokens.

    Args:
        shifted: the windows are shifted.
        shared: see `EncoderBlock`.
    """

    def __init__(self, channels: int, *, shifted: bool, **shared: Any) -> None:
        super().__init__(channels, **shared)
        self._shifted = shifted

    def forward(self, tokens: paddle.Tensor, windows: Windows) -> paddle.Tensor:
        """Tokens [N, T, H, W, C] to the same shape."""
        inside = windows.split(self.norm1(tokens), self._shifted)
        mask = windows.mask() if self._shifted and any(windows.shift) else None
        inside = windows.join(self.attn(inside, self.attn.bias(windows.num_tokens), mask), self._shifted)
        tokens = tokens + self.drop_path(inside)
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class PatchMerging(nn.Layer):
    """Joins the tokens of each 2×2 square: [N, T, H, W, C] to [N, T, H/2, W/2, 2C], odd sides rounded up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduction = linear(4 * channels, 2 * channels, bias=False)
        self.norm = LayerNorm(4 * channels)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        height, width = tokens.shape[2:4]
        if height % 2 or width % 2:
            tokens = F.pad(tokens, [0, width % 2, 0, height % 2, 0, 0], data_format="NDHWC")
        corners = [tokens[:, :, top::2, left::2] for left in (0, 1) for top in (0, 1)]
        return self.reduction(self.norm(paddle.concat(corners, axis=-1)))


class SwinStage(nn.Layer):
    """Blocks over tokens of one size, every other with shifted windows, and the merging of patches."""

    def __init__(self, blocks: Sequence[SwinBlock], window: Box, downsample: PatchMerging | None) -> None:
        super().__init__()
        self._window = window
        self.blocks = nn.LayerList(blocks)
        self.downsample = downsample

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        windows = Windows(tokens.shape[1:4], self._window)
        for block in self.blocks:
            tokens = block(tokens, windows)
        return tokens if self.downsample is None else self.downsample(tokens)


class SwinConverter(RenamingConverter):
    """The authors' networks: Video Swin Transformer, in files of MMAction2's form, and the 2D one.

    The 2D network's classifier is of another task, and is left out.
    """

    classifier = "cls_head.fc_cls"
    layers = ((r"((?:patch_embed|layers|norm)(?:\..+)?)", r"\1"),)
    renames = ((r"^backbone\.", ""),)

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        if "head.weight" in state:
            self.backbone_only, self.classifier = True, "head"


class TorchvisionSwinConverter(RenamingConverter):
    """torchvision's Video Swin Transformer; it numbers blocks and mergings of patches in one list."""

    classifier = "head"
    layers = (
        (r"(patch_embed\.(?:proj|norm)|norm)", r"\1"),
        (r"(layers\.\d+\.downsample\.(?:norm|reduction))", r"\1"),
        (r"(layers\.\d+\.blocks\.\d+\.(?:norm[12]|attn\.\w+))", r"\1"),
        (r"(layers\.\d+\.blocks\.\d+\.mlp)\.0", r"\1.fc1"),
        (r"(layers\.\d+\.blocks\.\d+\.mlp)\.3", r"\1.fc2"),
    )

    def normalized(self, name: str) -> str:
        """`features.2.0.norm1` to `layers.1.blocks.0.norm1`, `features.3` to `layers.1.downsample`."""
        match = re.fullmatch(r"features\.(\d+)\.(.+)", name)
        if not match:
            return name
        stage, is_merging = divmod(int(match[1]), 2)
        return f"layers.{stage}.{'downsample' if is_merging else 'blocks'}.{match[2]}"


@BACKBONES.register()
class SwinTransformer3D(Backbone):
    """Video Swin Transformer. It takes clips of any size; a traced program is for one size.

    Args:
        pretrained: weights to start from: of this network, or of a 2D Swin Transformer. The 2D network's
            patches are inflated, and its biases are repeated for all offsets in time.
        patch_size: frames, rows and columns of a patch.
        in_chans: channels of the clips.
        embed_dim: channels of the first stage; each further stage doubles them.
        depths: blocks of each stage.
        num_heads: heads of attention in each stage.
        window_size: tokens of a window along time, height and width.
        mlp_ratio: hidden channels of the perceptrons for one channel.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor on the scores of attention; null: 1/sqrt(channels of a head).
        drop_rate: dropout after the patches, the perceptrons and the attention.
        attn_drop_rate: dropout of the attention's weights.
        drop_path_rate: stochastic depth of the last block; it rises from 0 in the first.
        patch_norm: a LayerNorm after the patches.
        frozen_stages: -1: all layers train; 0: the patches are frozen; n: so are the first n stages.

    Raises:
        ConfigError: the numbers of stages differ, or the heads do not divide the channels.

    Reference: Liu et al., "Video Swin Transformer", arXiv 2106.13230.
    """

    data_format = "NCDHW"
    has_tokens = True
    has_fixed_size = True
    cpu_runtime = "paddle"
    has_batch_norm = False
    computed = ("relative_position_index", "attn_mask")
    no_weight_decay = (_TABLE,)
    converters = {"mmaction2": SwinConverter, "torchvision": TorchvisionSwinConverter}
    ignored_arguments: ClassVar[dict[str, str]] = {
        "use_checkpoint": "RUNTIME.recompute names the stages whose activations are computed once more"
    }

    def __init__(
        self,
        pretrained: str | None = None,
        patch_size: tuple[Size, Size, Size] = (4, 4, 4),
        in_chans: Size = 3,
        embed_dim: Size = 96,
        depths: Sequence[Size] = (2, 2, 6, 2),
        num_heads: Sequence[Size] = (3, 6, 12, 24),
        window_size: tuple[Size, Size, Size] = (2, 7, 7),
        mlp_ratio: NonNegative = 4.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_rate: Share = 0.0,
        attn_drop_rate: Share = 0.0,
        drop_path_rate: Share = 0.2,
        patch_norm: bool = False,
        frozen_stages: int = -1,
    ) -> None:
        super().__init__()
        _check(embed_dim, depths, num_heads, frozen_stages)
        self.pretrained = pretrained
        self._window = box(window_size)
        self.patch_embed = PatchEmbed(in_chans, embed_dim, box(patch_size), norm=patch_norm)
        self.pos_drop = nn.Dropout(drop_rate)
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
        stages = []
        for stage, (depth, heads) in enumerate(zip(depths, num_heads)):
            channels = embed_dim * 2**stage
            attention = functools.partial(
                WindowAttention,
                self._window,
                channels,
                heads,
                qkv_bias=qkv_bias,
                scale=qk_scale,
                attention_dropout=attn_drop_rate,
                dropout=drop_rate,
            )
            blocks = [
                SwinBlock(
                    channels,
                    attention=attention,
                    hidden_channels=int(channels * mlp_ratio),
                    drop_path=next(rates),
                    dropout=drop_rate,
                    epsilon=1e-5,
                    shifted=index % 2 == 1,
                )
                for index in range(depth)
            ]
            is_last = stage == len(depths) - 1
            stages.append(SwinStage(blocks, self._window, None if is_last else PatchMerging(channels)))
        self.layers = nn.LayerList(stages)
        self.out_channels = embed_dim * 2 ** (len(depths) - 1)
        self.norm = LayerNorm(self.out_channels)
        self.stage_layers = _stage_layers(depths)
        if frozen_stages >= 0:
            starts = ("patch_embed.", *(f"layers.{stage}." for stage in range(frozen_stages)))
            set_frozen(self, [name for name, _ in self.named_parameters() if name.startswith(starts)])

    def forward(self, clips: paddle.Tensor) -> list[paddle.Tensor] | paddle.Tensor:
        """Clips, float [N, in_chans, T, H, W], to one feature map [N, out_channels, T', H', W'].

        With `data_format` "NLC" to tokens [N, T' * H' * W', out_channels].
        """
        tokens = self.pos_drop(self.patch_embed(clips))
        for stage in self.layers:
            tokens = stage(tokens)
        tokens = self.norm(tokens)
        return tokens.flatten(1, 3) if self.data_format == "NLC" else [tokens.transpose([0, 4, 1, 2, 3])]

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        return output if output.ndim == 5 else None

    def adapt_table(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """A table of biases, float [offsets, heads], of other windows or of a 2D network.

        Windows with as many offsets in space as this network's differ from them in time alone; other windows
        are taken for squares.
        """
        if not name.endswith(_TABLE) or value.ndim != 2 or value.shape[1] != shape[1]:
            return None
        sides = [2 * side - 1 for side in self._window]
        num_frames, rest = divmod(len(value), sides[1] * sides[2])
        stored = [num_frames, *sides[1:]]
        if rest:
            for num_frames in (1, sides[0]):
                side = math.isqrt(len(value) // num_frames)
                if num_frames * side * side == len(value):
                    stored = [num_frames, side, side]
                    break
            else:
                return None
        # linear interpolation of one offset in time repeats it
        return resized(paddle.to_tensor(value), stored, sides).numpy()


def _check(embed_dim: int, depths: Sequence[int], num_heads: Sequence[int], frozen_stages: int) -> None:
    problems = []
    if len(depths) != len(num_heads):
        problems.append(
            f"MODEL.backbone.num_heads: has {len(num_heads)} stages, and depths has {len(depths)}"
        )
    problems += [
        f"MODEL.backbone.num_heads.{stage}={heads}: does not divide {embed_dim * 2**stage} channels"
        for stage, heads in enumerate(num_heads)
        if embed_dim * 2**stage % heads
    ]
    if not -1 <= frozen_stages <= len(depths):
        problems.append(
            f"MODEL.backbone.frozen_stages={frozen_stages}: expected -1 (none) to {len(depths)} (all stages)"
        )
    if problems:
        raise ConfigError(problems)


def _stage_layers(depths: Sequence[int]) -> dict[str, list[str]]:
    """The merging of patches belongs to the block after it, the last LayerNorm to the head."""
    names: dict[str, list[str]] = {"stem": ["patch_embed"]}
    for stage, depth in enumerate(depths):
        for index in range(depth):
            merging = [f"layers.{stage - 1}.downsample"] if stage and not index else []
            names[f"block{len(names)}"] = [*merging, f"layers.{stage}.blocks.{index}"]
    return {**names, "head": ["norm"]}
