"""Hiera's decoder: it restores mask units from the tokens of all stages of the encoder."""

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import CropSize, NonNegative, NumFrames, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.hiera.network import PATCH_STRIDE, Hiera
from paddlevideo_fast.extensions.pretraining.model import Decoder, Parts, start_as_convolution
from paddlevideo_fast.modeling.backbones.videomae import encoder
from paddlevideo_fast.modeling.layers.attention import SelfAttention, linear, table
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.layers.operators import of_each
from paddlevideo_fast.modeling.layers.positions import resized
from paddlevideo_fast.modeling.layers.windows import Box, Windows, box
from paddlevideo_fast.registry import HEADS

_EPSILON = 1e-6


@HEADS.register()
class HieraDecoder(Decoder):
    """Restores the pixels of hidden mask units from the tokens of visible ones; of use in pre-training only.

    What a mask unit is at the end of the encoder, such as 2×2 tokens, gets what earlier stages know of it. Of
    each patch over two frames the first frame is restored. The decoder is as large for all sizes of Hiera.

    Args:
        in_channels: of the encoder's tokens.
        embed_dim: channels of a token in the decoder.
        depth: blocks.
        num_heads: of each attention; must divide `embed_dim`.
        mlp_ratio: hidden channels of a block's perceptron, per channel.
        num_frames, crop_size: frames and side in pixels of the clips that the table of positions is made for;
            it is interpolated for clips of another size.
        tubelet_size, mask_unit, q_pool: as of the backbone, which has `q_pool` given.
        num_stages: how many stages the backbone has.
        normalize_targets: restore pixels less the mean of their square, over its standard deviation; False:
            the pixels as `Normalization` gives them.

    Raises:
        ConfigError: the heads do not divide the channels, or the poolings do not divide the mask unit.

    Reference: Ryali et al., "Hiera: A Hierarchical Vision Transformer without the Bells-and-Whistles", arXiv
    2306.00989, section 3.
    """

    encoder = Hiera
    has_tubes = False
    no_weight_decay = ("mask_token", "decoder_pos_embed")

    def __init__(
        self,
        in_channels: Size,
        embed_dim: Size = 512,
        depth: Size = 8,
        num_heads: Size = 16,
        mlp_ratio: NonNegative = 4.0,
        num_frames: NumFrames = 16,
        crop_size: CropSize = 224,
        tubelet_size: Size = 2,
        mask_unit: Size = 32,
        q_pool: Size = 2,
        num_stages: Size = 4,
        normalize_targets: bool = True,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        self._square = PATCH_STRIDE * 2**q_pool  # pixels along a side of what a token restores
        if mask_unit % self._square:
            text = f"expected a multiple of {self._square}, as q_pool is {q_pool}"
            raise ConfigError(f"MODEL.head.mask_unit={mask_unit}: {text}")
        self.in_channels = in_channels
        self.normalize_targets = normalize_targets
        self._sizes = {
            "tubelet_size": tubelet_size,
            "mask_unit": mask_unit,
            "q_pool": q_pool,
            "num_stages": num_stages,
        }
        self._side = mask_unit // self._square  # of a unit, in the decoder's tokens
        self._grid = box(
            max(size // part, 1)
            for size, part in zip((num_frames, crop_size, crop_size), (tubelet_size, *2 * [self._square]))
        )
        # a stage with n poolings to come has 4^n tokens for one of the last stage
        joined = [
            in_channels // 2 ** (num_stages - 1 - stage) * 4 ** (q_pool - stage) for stage in range(q_pool)
        ]
        self.fusion = nn.LayerList([linear(channels, in_channels) for channels in joined])
        self.encoder_norm = LayerNorm(in_channels, epsilon=_EPSILON)
        self.embed = linear(in_channels, embed_dim)
        self.mask_token = table(self, 1, 1, embed_dim)
        times, rows, columns = self._grid
        self.decoder_pos_embed = table(self, 1, times * rows * columns, embed_dim)
        self.blocks = encoder(embed_dim, num_heads, mlp_ratio, [0.0] * depth, SelfAttention)
        self.norm = LayerNorm(embed_dim, epsilon=_EPSILON)
        self.pred = linear(embed_dim, 3 * self._square**2)

    def sizes(self, backbone: Any) -> dict[str, tuple[int, int]]:
        theirs = {**vars(backbone), "num_stages": len(backbone.stage_ends)}
        return {key: (own, theirs[key]) for key, own in self._sizes.items()}

    def start(self, backbone: Any) -> None:
        """Biases begin at 0 in pre-training; what joins the stages begins as a convolution."""
        for name, parameter in backbone.named_parameters():
            if name.endswith(".bias"):
                parameter.set_value(paddle.zeros_like(parameter))
        for layer in self.fusion:
            start_as_convolution(layer.weight)

    def forward(
        self,
        stages: list[paddle.Tensor],
        visible: paddle.Tensor,
        hidden: paddle.Tensor,
        grid: Box,
    ) -> paddle.Tensor:
        """Predictions for hidden mask units.

        Args:
            stages: of the visible units, the tokens of each stage of the encoder, [N, V * tokens of one, C].
            visible: int64 [N, V], their numbers.
            hidden: int64 [N, M], the numbers of the hidden ones.
            grid: mask units of the clips along time, height and width.

        Returns:
            [N, M * squares of a unit, 3 P]: the P pixels of a square by row and column, three colours each.
        """
        of_unit = self._side**2
        tokens = stages[-1]
        for stage, layer in zip(stages, self.fusion):
            parts = stage.reshape([-1, layer.weight.shape[0] // stage.shape[2], of_unit, stage.shape[2]])
            tokens = tokens + layer(parts.transpose([0, 2, 1, 3]).flatten(2)).reshape(tokens.shape)
        tokens = self.embed(self.encoder_norm(tokens))
        num_clips, num_seen, channels = tokens.shape
        positions = self._positions(grid)
        seen, wanted = (
            F.embedding(numbers, positions).reshape([num_clips, -1, channels]).astype(tokens.dtype)
            for numbers in (visible, hidden)
        )
        tokens = paddle.concat([tokens + seen, self.mask_token.astype(tokens.dtype) + wanted], axis=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.pred(self.norm(tokens[:, num_seen:]))

    def _positions(self, grid: Box) -> paddle.Tensor:
        """The positions of all tokens of each mask unit, in one row: [units, tokens of a unit * channels]."""
        sides = (grid[0], grid[1] * self._side, grid[2] * self._side)
        positions = resized(self.decoder_pos_embed[0], self._grid, sides).reshape([1, *sides, -1])
        return Windows(sides, (1, self._side, self._side)).split(positions, shifted=False).flatten(1)

    def restored(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> Parts:
        predictions = self(backbone.encode(clips, visible), visible, hidden, backbone.grid(clips))
        truth = of_each(self._squares(clips), hidden).flatten(1, 2)
        if self.normalize_targets:
            mean, deviation = _moments(truth)
            truth = (truth - mean) / deviation
        return predictions, truth

    def _squares(self, clips: paddle.Tensor) -> paddle.Tensor:
        """The pixels of the first frame of each patch, float32 [N, units, squares of a unit, 3 P]."""
        unit, side, square = self._sizes["mask_unit"], self._side, self._square
        frames = clips[:, :, :: self._sizes["tubelet_size"]].astype("float32").transpose([0, 2, 3, 4, 1])
        units = Windows(frames.shape[1:4], (1, unit, unit)).split(frames, shifted=False)
        parts = units.reshape([-1, side, square, side, 3 * square]).transpose([0, 1, 3, 2, 4])
        return parts.reshape([clips.shape[0], -1, side**2, 3 * square**2])

    def _frames(self, squares: paddle.Tensor, shape: list[int]) -> paddle.Tensor:
        """The clips, of `shape` [N, 3, T, H, W], whose frames these squares are, each for a whole patch."""
        unit, side, square = self._sizes["mask_unit"], self._side, self._square
        tubelet = self._sizes["tubelet_size"]
        parts = squares.reshape([-1, side, side, square, 3 * square]).transpose([0, 1, 3, 2, 4])
        windows = Windows((shape[2] // tubelet, *shape[3:]), (1, unit, unit))
        frames = windows.join(parts.reshape([-1, unit**2, 3]), shifted=False).transpose([0, 4, 1, 2, 3])
        return paddle.repeat_interleave(frames, tubelet, axis=2)

    def pictures(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> dict[str, paddle.Tensor]:
        predictions, _ = self.restored(backbone, clips, visible, hidden)
        squares = self._squares(clips)
        truth = of_each(squares, hidden)
        pixels = predictions.astype("float32").reshape(truth.shape)
        if self.normalize_targets:
            mean, deviation = _moments(truth)
            pixels = pixels * deviation + mean
        order = paddle.argsort(paddle.concat([visible, hidden], axis=1), axis=1)
        drawn = of_each(paddle.concat([of_each(squares, visible), pixels], axis=1), order)
        shown = backbone.shown(clips, visible)
        seen = clips * shown
        return {"visible": seen, "reconstruction": seen + self._frames(drawn, clips.shape) * (1 - shown)}


def _moments(squares: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Mean and standard deviation of the last axis, which stays with length 1."""
    mean = squares.mean(axis=-1, keepdim=True)
    variance = (squares - mean).square().sum(axis=-1, keepdim=True) / (squares.shape[-1] - 1)
    return mean, (variance + _EPSILON).sqrt()
