"""Hiera: a pyramid of plain encoder blocks; the first stages attend inside mask units, the last ones to all.

Layers have the authors' names: `blocks.3.attn.qkv`, `blocks.3.proj`, `pos_embed_spatial`.

A mask unit is a square of tokens at one time. The tokens of a clip lie unit by unit, so a part of the units
is a part of the tokens. Inside a unit, the tokens that a pooling joins lie one quarter of the unit apart:

    4×4 tokens, two poolings      0  4  1  5        the first pooling joins 0, 4, 8, 12
                                  8 12  9 13        the second one joins what has become 0, 1, 2, 3
                                  2  6  3  7
                                 10 14 11 15

So a pooling is the maximum over an axis of 4, and needs no convolution.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import CropSize, FrameDivisor, NumFrames, Share, SideDivisor, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import Network, RenamingConverter, Step, Target, Weights
from paddlevideo_fast.modeling.layers.attention import EncoderBlock, attend, drop_path_rates, linear, table
from paddlevideo_fast.modeling.layers.operators import constant, of_each
from paddlevideo_fast.modeling.layers.positions import resized
from paddlevideo_fast.modeling.layers.windows import Box, PatchEmbed, Windows, closed, grid_of
from paddlevideo_fast.registry import BACKBONES

_PATCH_KERNEL = 7  # pixels; patches begin PATCH_STRIDE apart
PATCH_STRIDE = 4
_STAGES_IN_UNITS = 2  # how many stages attend inside mask units


def pooled(tokens: paddle.Tensor, unit: int) -> paddle.Tensor:
    """The maximum of each four tokens that a pooling joins: [N, L, ...] to [N, L / 4, ...].

    Args:
        tokens: unit by unit.
        unit: tokens of a mask unit.
    """
    length, *rest = tokens.shape[1:]
    joined = tokens.reshape([-1, 4, unit // 4, *rest]).max(axis=1)
    return joined.reshape([-1, length // 4, *rest])


class UnitAttention(nn.Layer):
    """Attention inside mask units or among all tokens, whose queries may be pooled.

    Args:
        in_channels, channels: of the tokens before and after.
        num_heads: of the attention.
        unit: tokens of a mask unit before the pooling.
        is_global: all tokens of a clip attend to each other.
        pools: the queries are pooled.

    Reference: Ryali et al., "Hiera", arXiv 2306.00989, section 3.
    """

    def __init__(
        self, in_channels: int, channels: int, num_heads: int, unit: int, is_global: bool, pools: bool
    ) -> None:
        super().__init__()
        self._sizes = (in_channels, channels, num_heads)
        self._unit, self._is_global, self._pools = unit, is_global, pools
        self.qkv = linear(in_channels, 3 * channels)
        self.proj = linear(channels, channels)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, in_channels] to [N, L, channels], or to [N, L / 4, channels] where it pools."""
        in_channels, channels, num_heads = self._sizes
        length = tokens.shape[1]
        num_seen = length if self._is_global else self._unit
        parts = tokens.reshape([-1, num_seen, in_channels])
        heads = self.qkv(parts).reshape([-1, num_seen, 3, num_heads, channels // num_heads])
        query, key, value = heads.unbind(2)
        if self._pools:
            query, length = pooled(query, self._unit), length // 4
        return self.proj(attend(query, key, value).reshape([-1, length, channels]))


class HieraBlock(EncoderBlock):
    """An encoder block. Where the queries are pooled, the shortcut is, too."""

    def __init__(self, channels: int, unit: int, pools: bool, **shared: Any) -> None:
        super().__init__(channels, **shared)
        self._unit, self._pools = unit, pools

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, in_channels] to [N, L, channels], or to [N, L / 4, channels] where it pools."""
        normed = self.norm1(tokens)
        shortcut = tokens if self.proj is None else self.proj(normed)
        shortcut = pooled(shortcut, self._unit) if self._pools else shortcut
        tokens = shortcut + self.drop_path(self.attn(normed))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class HieraConverter(RenamingConverter):
    """The authors' files (facebookresearch/hiera), fine-tuned or pre-trained.

    A pre-trained file has an encoder and a decoder. A network that classifies takes the encoder alone; the
    report says what is left out. The network of `Pretrain` takes both.
    """

    classifier = "head.projection"
    layers = (
        (r"(patch_embed\.proj|pos_embed_spatial|pos_embed_temporal)", r"\1"),
        (r"(blocks\.\d+\.(?:norm[12]|proj|attn\.(?:qkv|proj)|mlp\.fc[12]))", r"\1"),
        (r"norm", r"head.fc_norm"),
        (r"(encoder_norm|mask_token|decoder_pos_embed)", r"head.\1"),
        (r"decoder_(embed|norm|pred|blocks\.\d+\.[\w.]+)", r"head.\1"),
        (r"multi_scale_fusion_heads\.(\d+)", r"head.fusion.\1"),
    )
    left_out = "only pre-training needs it"

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        self.backbone_only = bool(network.classifier) and f"{self.classifier}.weight" not in state

    def target(self, name: str) -> Target | None:
        target = super().target(name)
        if target is None or not target.name.startswith("head.fusion.") or not name.endswith("weight"):
            return target
        return Target(target.name, (Step("from a convolution to a linear layer", _fusion, num_axes=5),))

    def differences(self) -> Sequence[str]:
        """What to set so that the network has the size of the file's; heads do not show in a file."""
        theirs = _size({name: value.shape for name, value in self.state.items()})
        prefix = "backbone."
        own = _size({name.removeprefix(prefix): shape for name, shape in self.network.shapes.items()})
        wrong = [f"MODEL.backbone.{key}={theirs[key]}" for key in theirs if theirs[key] != own.get(key)]
        text = f"the file's encoder has another size; set {' and '.join(wrong)}"
        return [*super().differences(), *([text] if wrong else [])]


def _size(shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Arguments of the encoder that tensors are of, as far as their shapes say them."""
    patches = shapes.get("patch_embed.proj.weight", ())
    numbers = {int(name.split(".")[1]) for name in shapes if name.startswith("blocks.")}
    if not patches or not numbers:
        return {}
    wide = [number for number in sorted(numbers) if f"blocks.{number}.proj.weight" in shapes]
    depths = np.diff([0, *wide, max(numbers) + 1]).tolist()
    return {"embed_dim": str(patches[0]), "depths": str(depths).replace(" ", "")}


def _fusion(kernel: np.ndarray) -> np.ndarray:
    """A kernel [out, in, 1, side, side] as a weight [side * side * in, out]; see `units_in_order`."""
    side = kernel.shape[-1]
    squares = kernel.reshape(*kernel.shape[:2], -1)[:, :, units_in_order(side, side.bit_length() - 1)]
    return squares.transpose(2, 1, 0).reshape(-1, len(kernel))


@BACKBONES.register()
class Hiera(Backbone):
    """Hiera for videos. It takes clips of any size that mask units divide; a traced program is for one size.

    Its output are tokens: take `VideoMAEHead` to classify with it, and the framework `Pretrain` with
    `HieraDecoder` to pre-train it without labels. T, S, B have `embed_dim` 96 and `num_heads` 1, B+ has 112
    and 2, L has 144 and 2.

    Args:
        pretrained: weights to start from, a path or a URL; of pre-training, too, whose decoder is left out.
        num_frames, crop_size: frames and side in pixels of the clips that the tables of positions are made
            for; they are interpolated for clips of another size.
        embed_dim: channels of the first stage; each further stage doubles them.
        depths: blocks of each stage. T: [1, 2, 7, 2]; S: [1, 2, 11, 2]; B and B+: [2, 3, 16, 3]; L:
            [2, 6, 36, 4].
        num_heads: heads of attention in the first stage; each further stage doubles them.
        tubelet_size: frames from patch to patch, of which each sees three; must divide the frames of the
            clips.
        mask_unit: side of a mask unit in pixels, a multiple of 4 * 2^q_pool; must divide the sides of the
            clips.
        q_pool: how many stages begin with a pooling, from the second one on; null: all. Pre-training has one
            fewer, so that units of 32 pixels end as 2×2 tokens.
        drop_path_rate: stochastic depth of the last block; it rises from 0 in the first.

    Raises:
        ConfigError: the heads do not divide the channels, or the poolings do not divide the mask unit.

    Reference: Ryali et al., "Hiera: A Hierarchical Vision Transformer without the Bells-and-Whistles", arXiv
    2306.00989.
    """

    data_format = "NLC"
    has_fixed_size = True
    least_frames = 2
    has_batch_norm = False
    no_weight_decay = ("pos_embed",)

    def __init__(
        self,
        pretrained: str | None = None,
        num_frames: NumFrames = 16,
        crop_size: CropSize = 224,
        embed_dim: Size = 96,
        depths: Sequence[Size] = (2, 3, 16, 3),
        num_heads: Size = 1,
        tubelet_size: FrameDivisor = 2,
        mask_unit: SideDivisor = 32,
        q_pool: int | None = None,
        drop_path_rate: Share = 0.0,
    ) -> None:
        super().__init__()
        self.q_pool = len(depths) - 1 if q_pool is None else q_pool
        _check(embed_dim, num_heads, len(depths), mask_unit, self.q_pool)
        self.pretrained = pretrained
        self.tubelet_size, self.mask_unit = tubelet_size, mask_unit
        self.unit_side = mask_unit // PATCH_STRIDE  # in tokens of the first stage
        self._grid = (max(num_frames // tubelet_size, 1), max(crop_size // PATCH_STRIDE, 1))
        kernel, stride = (3, _PATCH_KERNEL, _PATCH_KERNEL), (tubelet_size, PATCH_STRIDE, PATCH_STRIDE)
        self.patch_embed = PatchEmbed(3, embed_dim, kernel, stride)
        self.pos_embed_spatial = table(self, 1, self._grid[1] ** 2, embed_dim)
        self.pos_embed_temporal = table(self, 1, self._grid[0], embed_dim)
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
        blocks: list[HieraBlock] = []
        in_channels, unit = embed_dim, self.unit_side**2
        for stage, depth in enumerate(depths):
            channels, pools = embed_dim * 2**stage, 0 < stage <= self.q_pool
            for index in range(depth):
                # the block that pools still attends as the stage before, where it takes its tokens from
                is_global = stage - (index == 0) >= _STAGES_IN_UNITS
                heads, is_first = num_heads * 2**stage, pools and index == 0
                attention = functools.partial(
                    UnitAttention, in_channels, channels, heads, unit, is_global, is_first
                )
                block = HieraBlock(
                    channels,
                    unit,
                    is_first,
                    attention=attention,
                    hidden_channels=4 * channels,
                    drop_path=next(rates),
                    in_channels=in_channels,
                )
                blocks.append(block)
                in_channels, unit = channels, unit // 4 if is_first else unit
        self.blocks = nn.LayerList(blocks)
        self.stage_ends = np.cumsum(depths).tolist()
        self.out_channels = in_channels
        self.stage_layers = {"stem": ["patch_embed", "pos_embed_spatial", "pos_embed_temporal"]}
        self.stage_layers.update({f"block{index + 1}": [f"blocks.{index}"] for index in range(len(blocks))})
        self.start_as_published()

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, normalised float [N, 3, T, H, W], to tokens [N, L, out_channels], ordered by time and unit.

        Raises:
            ConfigError: the mask units do not divide the clip, or a program is exported with free sides.
        """
        return self.encode(clips)[-1]

    def encode(self, clips: paddle.Tensor, visible: paddle.Tensor | None = None) -> list[paddle.Tensor]:
        """Clips [N, 3, T, H, W] to the tokens that each stage gives, [N, L, channels of the stage].

        Args:
            clips: normalised float.
            visible: int64 [N, V], the numbers of the mask units that are computed. Pixels of the others are
                0 where a patch reaches beyond its unit. None: all units.

        Raises:
            ConfigError: the mask units do not divide the clip, or a program is exported with free sides.
        """
        num_units = math.prod(self.grid(clips))
        if visible is not None:
            clips = clips * self.shown(clips, visible)
        units = self._units(self.patch_embed(clips))
        units = units.reshape([-1, num_units, *units.shape[1:]])
        if visible is not None:
            units = of_each(units, visible)
        tokens, outputs = units.flatten(1, 2), []
        for number, block in enumerate(self.blocks, 1):
            tokens = block(tokens)
            if number in self.stage_ends:
                outputs.append(tokens)
        return outputs

    def shown(self, clips: paddle.Tensor, visible: paddle.Tensor) -> paddle.Tensor:
        """1 at the pixels of the visible mask units of clips [N, 3, T, H, W], else 0: [N, 1, T, H, W]."""
        grid = self.grid(clips)
        units = F.one_hot(visible, math.prod(grid)).sum(axis=1).reshape([-1, 1, *grid])
        shown = F.interpolate(units, list(clips.shape[2:]), mode="nearest", data_format="NCDHW")
        return shown.astype(clips.dtype)

    def _units(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, T, H, W, C] with their positions, unit by unit: [N * units, tokens of a unit, C]."""
        times, rows, columns, channels = tokens.shape[1:]
        full_times, side = self._grid
        space = resized(self.pos_embed_spatial[0], [side, side], [rows, columns])
        time = resized(self.pos_embed_temporal[0], [full_times], [times])
        positions = space.reshape([rows, columns, channels]) + time.reshape([times, 1, 1, channels])
        windows = Windows((times, rows, columns), (1, self.unit_side, self.unit_side))
        units = windows.split(tokens + positions.astype(tokens.dtype), shifted=False)
        return paddle.index_select(units, constant(_order, self.unit_side, self.q_pool), axis=1)

    def grid(self, clips: paddle.Tensor) -> Box:
        """Mask units of clips [N, 3, T, H, W] along time, height and width.

        Raises:
            ConfigError: they do not divide the clip, or a program is exported with free sides.
        """
        sizes = ("tubelet_size", self.tubelet_size), ("mask_unit", self.mask_unit)
        return closed(grid_of(clips.shape[2:], *sizes), type(self).__name__)

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        if output.ndim != 3:
            return output if output.ndim == 5 else None
        times, rows, columns = self.grid(clips)
        unit = output.shape[1] // (times * rows * columns)
        side = math.isqrt(unit)
        num_pools = self.q_pool - (self.unit_side // side).bit_length() + 1  # that are still to come
        back = paddle.to_tensor(np.argsort(units_in_order(side, num_pools)))
        units = paddle.index_select(output.reshape([-1, unit, output.shape[-1]]), back, axis=1)
        return Windows((times, rows * side, columns * side), (1, side, side)).join(units, shifted=False)

    def adapt_table(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """A table of positions of clips of another size, interpolated; those of frames are squares."""
        if not name.startswith("pos_embed_") or value.ndim != 3 or value.shape[2] != shape[2]:
            return None
        sizes = [[value.shape[1]], [shape[1]]]
        if name == "pos_embed_spatial":
            sizes = [[math.isqrt(length)] * 2 for (length,) in sizes]
        return resized(paddle.to_tensor(value[0]), *sizes).numpy()[None]


def _check(embed_dim: int, num_heads: int, num_stages: int, mask_unit: int, q_pool: int) -> None:
    if embed_dim % num_heads:
        raise ConfigError(f"MODEL.backbone.num_heads={num_heads}: does not divide embed_dim={embed_dim}")
    if not 0 <= q_pool < num_stages:
        text = f"expected 0 to {num_stages - 1}, as depths has {num_stages} stages"
        raise ConfigError(f"MODEL.backbone.q_pool={q_pool}: {text}")
    part = PATCH_STRIDE * 2**q_pool
    if mask_unit % part:
        text = f"expected a multiple of {part}, as patches begin {PATCH_STRIDE} pixels apart and"
        raise ConfigError(f"MODEL.backbone.mask_unit={mask_unit}: {text} {q_pool} poolings halve it")


def units_in_order(side: int, num_pools: int) -> np.ndarray:
    """The numbers of the tokens of a mask unit, counted row by row, in the order in which they lie.

    Args:
        side: of the unit in tokens.
        num_pools: that are still to come.

    Returns:
        int64 [side * side].
    """
    rows, columns = np.indices((side, side)).reshape([2, -1])
    quarters = [(rows >> level & 1) * 2 + (columns >> level & 1) for level in range(num_pools)]
    return np.lexsort([columns >> num_pools, rows >> num_pools, *reversed(quarters)])


def _order(side: int, num_pools: int) -> paddle.Tensor:
    return paddle.to_tensor(units_in_order(side, num_pools))
