"""MViTv2: attention whose queries, keys and values are pooled, with ever more channels for ever fewer tokens.

Layers have names like PySlowFast's: `blocks.3.attn.pool_q`, `blocks.3.attn.rel_pos_h`, `blocks.3.proj`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import CropSize, NonNegative, NumFrames, Share, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import Network, RenamingConverter, Weights
from paddlevideo_fast.modeling.layers.attention import (
    EncoderBlock,
    attend,
    class_and_patches,
    drop_path_rates,
    linear,
    table,
)
from paddlevideo_fast.modeling.layers.cpu import Conv3D, LayerNorm, transpose
from paddlevideo_fast.modeling.layers.operators import constant
from paddlevideo_fast.modeling.layers.positions import resized
from paddlevideo_fast.modeling.layers.windows import Box, PatchEmbed, box
from paddlevideo_fast.registry import BACKBONES

logger = get_logger(__name__)

_PATCH = (2, 4, 4)  # strides of the patches
_AXES = ("t", "h", "w")
_norm = functools.partial(LayerNorm, epsilon=1e-6)


class PooledAttention(nn.Layer):
    """Attention among pooled tokens, with decomposed relative positions and a residual of the pooled queries.

    The class token is not pooled, and has no position.

    Args:
        in_channels, channels: of the tokens before and after.
        num_heads: of the attention.
        stride: of the queries along T, H, W; what is given has as many tokens fewer.
        kv_stride: of keys and values.
        grid: tokens along T, H, W in the clips that the tables of positions are made for.

    Reference: Li et al., "MViTv2", arXiv 2112.01526, section 4.1.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        num_heads: int,
        qkv_bias: bool,
        dropout: float,
        stride: Box,
        kv_stride: Box,
        grid: Box,
    ) -> None:
        super().__init__()
        self._num_heads = num_heads
        head_channels = channels // num_heads
        self.qkv = linear(in_channels, 3 * channels, qkv_bias)
        for name, strides in (("q", stride), ("k", kv_stride), ("v", kv_stride)):
            pool = Conv3D(
                head_channels, head_channels, 3, strides, padding=1, groups=head_channels, bias_attr=False
            )
            self.add_sublayer(f"pool_{name}", pool)
            self.add_sublayer(f"norm_{name}", _norm(head_channels))
        for axis, side, step, kv_step in zip(_AXES, grid, stride, kv_stride):
            length = 2 * max(side // step, side // kv_step) - 1
            self.add_parameter(f"rel_pos_{axis}", table(self, length, head_channels))
        self.proj = linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: paddle.Tensor, grid: Box) -> tuple[paddle.Tensor, Box]:
        """Tokens [N, 1 + T*H*W, in_channels] and their grid to pooled ones, with `channels`, and theirs."""
        length = tokens.shape[1]
        qkv = self.qkv(tokens).reshape([0, length, 3, self._num_heads, -1])
        query, key, value = transpose(qkv, [2, 0, 3, 4, 1]).unbind(0)
        query, query_grid = self._pooled("q", query, grid)
        key, key_grid = self._pooled("k", key, grid)
        value, _ = self._pooled("v", value, grid)
        # q · k + position(q, k) is one product of longer vectors: a key has, for each axis, a 1 at its place
        class_token, patches = class_and_patches(query, axis=2)
        positions = self._positions(patches, query_grid, key_grid)
        one_hot = constant(_one_hot_positions, key_grid) + paddle.zeros_like(
            key[:, :, :, :1]
        )  # for each of N
        scaled = query * query.shape[-1] ** -0.5
        mixed = attend(
            paddle.concat([scaled, positions], axis=-1),
            paddle.concat([key, one_hot.astype(key.dtype)], axis=-1),
            value,
            scale=1.0,
            heads_first=True,
        )
        mixed = mixed + paddle.concat([paddle.zeros_like(class_token), patches], axis=2)
        length, channels = query.shape[2], self._num_heads * query.shape[3]
        joined = transpose(mixed, [0, 2, 1, 3]).reshape([-1, length, channels])
        return self.dropout(self.proj(joined)), query_grid

    def _pooled(self, name: str, heads: paddle.Tensor, grid: Box) -> tuple[paddle.Tensor, Box]:
        """Heads [N, heads, D, 1 + T*H*W] to pooled ones [N, heads, 1 + T'*H'*W', D], and their grid."""
        flat = heads.flatten(0, 1)
        pool = getattr(self, f"pool_{name}")
        channels = pool.weight.shape[0]  # Paddle 2 knows none of a flattened tensor while it traces
        class_token, patches = class_and_patches(flat, axis=2)
        pooled = pool(patches.reshape([-1, channels, *grid]))
        pooled_grid = box(pooled.shape[2:])
        joined = transpose(paddle.concat([class_token, pooled.flatten(2)], axis=2), [0, 2, 1])
        normed = getattr(self, f"norm_{name}")(joined)
        return normed.reshape([-1, self._num_heads, joined.shape[1], channels]), pooled_grid

    def _positions(self, patches: paddle.Tensor, grid: Box, key_grid: Box) -> paddle.Tensor:
        """For each query, what a key's place along each axis adds to its score.

        Args:
            patches: the queries without the class token's, [N, heads, T*H*W, D].
            grid: of the queries.
            key_grid: T', H', W' of the keys.

        Returns:
            [N, heads, 1 + T*H*W, T' + H' + W'], zeros for the class token.
        """
        channels, num_queries = patches.shape[-1], grid[0] * grid[1] * grid[2]
        queries = patches.reshape([-1, *grid, channels])
        each = []
        for number, (axis, side, key_side) in enumerate(zip(_AXES, grid, key_grid)):
            # this axis to the front, for one product with each of its rows
            order = [number + 1, 0, *(other for other in (1, 2, 3) if other != number + 1), 4]
            others = [size for other, size in enumerate(grid) if other != number]
            flat = transpose(queries, order).reshape([side, -1, channels])
            along = paddle.matmul(flat, self._rows(axis, side, key_side), transpose_y=True)
            back = [order.index(dim) for dim in range(5)]
            along = transpose(along.reshape([side, -1, *others, key_side]), back)
            each.append(along.reshape([-1, self._num_heads, num_queries, key_side]))
        joined = paddle.concat(each, axis=-1)
        return paddle.concat([paddle.zeros_like(joined[:, :, :1]), joined], axis=2)

    def _rows(self, axis: str, side: int, key_side: int) -> paddle.Tensor:
        """The rows of a table for all pairs of queries and keys along an axis, [queries, keys, D]."""
        own = getattr(self, f"rel_pos_{axis}")
        own = resized(own, own.shape[:1], [2 * max(side, key_side) - 1])
        rows = paddle.index_select(own, constant(_distances, side, key_side))
        return rows.reshape([side, key_side, -1])


class MViTBlock(EncoderBlock):
    """Pooled attention and a perceptron. Channels grow, and the residual is pooled, where the queries are."""

    def __init__(self, channels: int, stride: Box, **shared: Any) -> None:
        super().__init__(channels, **shared)
        self._stride = stride

    def forward(self, tokens: paddle.Tensor, grid: Box) -> tuple[paddle.Tensor, Box]:
        """Tokens [N, 1 + T*H*W, in_channels] of a grid to [N, 1 + T'*H'*W', channels] and theirs."""
        normed = self.norm1(tokens)
        pooled, pooled_grid = self.attn(normed, grid)
        residual = tokens if self.proj is None else self.proj(normed)
        tokens = self._pooled(residual, grid) + self.drop_path(pooled)
        return tokens + self.drop_path(self.mlp(self.norm2(tokens))), pooled_grid

    def _pooled(self, tokens: paddle.Tensor, grid: Box) -> paddle.Tensor:
        if max(self._stride) == 1:
            return tokens
        channels = tokens.shape[-1]
        class_token, patches = class_and_patches(tokens)
        clip = transpose(patches, [0, 2, 1]).reshape([-1, channels, *grid])
        kernel = [step + 1 if step > 1 else 1 for step in self._stride]
        clip = F.max_pool3d(clip, kernel, self._stride, [side // 2 for side in kernel])
        return paddle.concat([class_token, transpose(clip.flatten(2), [0, 2, 1])], axis=1)


class MViTConverter(RenamingConverter):
    """PySlowFast's MViTv2."""

    classifier = "head.projection"
    layers = (
        (r"(patch_embed\.proj|cls_token|norm)", r"\1"),
        (r"(blocks\.\d+\.(?:norm[12]|proj|mlp\.fc[12]|attn\.\w+))", r"\1"),
    )


class TorchvisionMViTConverter(RenamingConverter):
    """torchvision's MViTv2."""

    classifier = "head.1"
    layers = (
        (r"conv_proj", r"patch_embed.proj"),
        (r"pos_encoding\.class_token", r"cls_token"),
        (r"norm", r"norm"),
        (r"(blocks\.\d+\.norm[12])", r"\1"),
        (r"(blocks\.\d+\.(?:attn\.)?proj)ect(?:\.0)?", r"\1"),
        (r"(blocks\.\d+\.attn\.(?:qkv|rel_pos_[thw]))", r"\1"),
        (r"(blocks\.\d+\.attn\.pool_[qkv])\.pool", r"\1"),
        (r"(blocks\.\d+\.attn)\.pool_([qkv])\.norm_act\.0", r"\1.norm_\2"),
        (r"(blocks\.\d+\.mlp)\.0", r"\1.fc1"),
        (r"(blocks\.\d+\.mlp)\.3", r"\1.fc2"),
    )

    def __init__(self, state: Weights, network: Network) -> None:
        token = "pos_encoding.class_token"
        shaped = {token: state[token].reshape([1, 1, -1])} if token in state else {}
        super().__init__({**state, **shaped}, network)


@BACKBONES.register()
class MViT(Backbone):
    """MViTv2 with a class token. It takes clips of any size; a traced program is for one size.

    The tables of relative positions are made for clips of `num_frames` and `crop_size`, and are interpolated
    for clips of another size.

    Args:
        pretrained: weights to start from.
        num_frames, crop_size: frames and side in pixels of the clips that the tables are made for.
        embed_dim: channels of the first stage; each further stage doubles them.
        depths: blocks of each stage. S: [1, 2, 11, 2]; B: [2, 3, 16, 3].
        num_heads: heads of attention in the first stage; each further stage doubles them.
        kv_stride: stride of keys and values in space in the first stage; each further stage halves it.
        patch_kernel: frames, rows and columns of a patch; patches begin 2 frames and 4 pixels apart.
        mlp_ratio: hidden channels of the perceptrons for one channel.
        qkv_bias: whether queries, keys and values have a bias.
        drop_rate: dropout after the perceptrons and the attention.
        drop_path_rate: stochastic depth of the last block; it rises from 0 in the first.

    Raises:
        ConfigError: the heads do not divide the channels.

    Reference: Li et al., "MViTv2: Improved Multiscale Vision Transformers for Classification and Detection",
    arXiv 2112.01526.
    """

    data_format = "NC"
    has_tokens = True
    has_fixed_size = True
    has_batch_norm = False
    converters = {"pyslowfast": MViTConverter, "torchvision": TorchvisionMViTConverter}

    def __init__(
        self,
        pretrained: str | None = None,
        num_frames: NumFrames = 16,
        crop_size: CropSize = 224,
        embed_dim: Size = 96,
        depths: Sequence[Size] = (1, 2, 11, 2),
        num_heads: Size = 1,
        kv_stride: Size = 8,
        patch_kernel: tuple[Size, Size, Size] = (3, 7, 7),
        mlp_ratio: NonNegative = 4.0,
        qkv_bias: bool = True,
        drop_rate: Share = 0.0,
        drop_path_rate: Share = 0.2,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ConfigError(f"MODEL.backbone.num_heads={num_heads}: does not divide embed_dim={embed_dim}")
        self.pretrained = pretrained
        self._clip = (num_frames, crop_size, crop_size)
        self._told: set[Box] = {self._clip}
        self.patch_embed = PatchEmbed(3, embed_dim, box(patch_kernel), _PATCH)
        self.cls_token = table(self, 1, 1, embed_dim)
        grid = box(max(side // step, 1) for side, step in zip(self._clip, _PATCH))
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
        channels, blocks = embed_dim, []
        for stage, depth in enumerate(depths):
            for index in range(depth):
                step = 2 if stage and not index else 1
                in_channels, channels = channels, embed_dim * 2**stage
                stride, kv_stride = (1, step, step), max(kv_stride // step, 1)
                attention = functools.partial(
                    PooledAttention,
                    in_channels,
                    channels,
                    num_heads * 2**stage,
                    qkv_bias,
                    drop_rate,
                    stride,
                    (1, kv_stride, kv_stride),
                    grid,
                )
                block = MViTBlock(
                    channels,
                    stride,
                    attention=attention,
                    hidden_channels=int(channels * mlp_ratio),
                    drop_path=next(rates),
                    dropout=drop_rate,
                    in_channels=in_channels,
                )
                blocks.append(block)
                grid = box(max(side // each, 1) for side, each in zip(grid, stride))
        self.blocks = nn.LayerList(blocks)
        self.out_channels = channels
        self.norm = _norm(channels)
        self.stage_layers: dict[str, list[str]] = {"stem": ["patch_embed", "cls_token"]}
        for index in range(len(blocks)):
            self.stage_layers[f"block{index + 1}"] = [f"blocks.{index}"]
        self.stage_layers["head"] = ["norm"]
        self.start_as_published()

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, float [N, 3, T, H, W], to the feature of the class token, [N, out_channels].

        With `data_format` "NLC" to all tokens [N, 1 + T' * H' * W', out_channels].
        """
        self._tell(box(clips.shape[2:]))
        patches = self.patch_embed(clips)
        grid = box(patches.shape[1:4])
        tokens = patches.flatten(1, 3)
        tokens = paddle.concat(
            [self.cls_token + paddle.zeros_like(tokens[:, :1]), tokens], axis=1
        )  # for each of N
        for block in self.blocks:
            tokens, grid = block(tokens, grid)
        return self.norm(tokens if self.data_format == "NLC" else tokens[:, 0])

    def _tell(self, clip: Box) -> None:
        if clip not in self._told:
            self._told.add(clip)
            text = "tables of positions, made for clips of %s, are interpolated for clips of %s (T×H×W)"
            logger.info(text, *("×".join(map(str, each)) for each in (self._clip, clip)))

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        if output.ndim != 3:
            return None
        sides = zip(clips.shape[2:], self.patch_embed.proj.weight.shape[2:], _PATCH)
        t, h, w = ((side + kernel // 2 * 2 - kernel) // step + 1 for side, kernel, step in sides)
        while t * h * w > output.shape[1] - 1:  # each pooling of the queries halves the sides, rounded up
            h, w = -(-h // 2), -(-w // 2)
        return output[:, 1:].reshape([clips.shape[0], t, h, w, -1])

    def adapt_table(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """A table of relative positions, interpolated to this network's length."""
        if "rel_pos_" not in name or value.ndim != 2 or value.shape[1] != shape[1]:
            return None
        return resized(paddle.to_tensor(value), value.shape[:1], shape[:1]).numpy()


def _distances(num_queries: int, num_keys: int) -> paddle.Tensor:
    """Which row of a table each pair of positions along an axis takes, int64 [queries * keys].

    The side with fewer positions has them farther apart; a fraction of a row is cut off.
    """
    queries = np.arange(num_queries)[:, None] * max(num_keys / num_queries, 1.0)
    keys = (num_keys - 1 - np.arange(num_keys)) * max(num_queries / num_keys, 1.0)
    return paddle.to_tensor((queries + keys).astype("int64").ravel())


def _one_hot_positions(grid: Box) -> paddle.Tensor:
    """For each key a 1 at its position on each axis, float32 [1 + T*H*W, T + H + W]; the first has none."""
    positions = np.indices(grid).reshape([3, -1])
    rows = np.concatenate([np.eye(side)[position] for side, position in zip(grid, positions)], axis=1)
    return paddle.to_tensor(np.concatenate([np.zeros((1, rows.shape[1])), rows]).astype("float32"))
