"""The plain video ViT of VideoMAE: tubelets of pixels, fixed positions, encoder blocks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.config.types import FrameDivisor, NonNegative, Share, SideDivisor, Size
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import Network, Renames, RenamingConverter, Step, Target, Weights
from paddlevideo_fast.modeling.layers import cpu
from paddlevideo_fast.modeling.layers.attention import EncoderBlock, SelfAttention, drop_path_rates, linear
from paddlevideo_fast.modeling.layers.positions import fixed_positions
from paddlevideo_fast.modeling.layers.windows import Box, closed, grid_of
from paddlevideo_fast.registry import BACKBONES


class TubeletEmbedding(nn.Layer):
    """The pixels of each tubelet of a clip, and one linear layer that makes a token of them.

    A tubelet is `tubelet_size` frames of a square of `patch_size` pixels. Tokens are ordered by time, then
    rows, then columns.
    """

    def __init__(self, channels: int, patch_size: int, tubelet_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.tubelet_size = tubelet_size
        self.proj = linear(3 * tubelet_size * patch_size**2, channels)

    def forward(self, tubelets: paddle.Tensor) -> paddle.Tensor:
        """Tubelets [N, L, P, 3] to tokens [N, L, channels]."""
        return self.proj(tubelets.reshape([0, 0, -1]))

    def grid(self, clip: Sequence[int]) -> Box:
        """How many tubelets a clip of (T, H, W) has along each of these; -1 where that is free.

        Raises:
            ConfigError: they do not divide the clip.
        """
        return grid_of(clip, ("tubelet_size", self.tubelet_size), ("patch_size", self.patch_size))

    def maps(self, tokens: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, C] of clips [N, 3, T, H, W] as maps [N, T', H', W', C]."""
        return tokens.reshape([clips.shape[0], *self.grid(clips.shape[2:]), -1])

    def tubelets(self, clips: paddle.Tensor) -> paddle.Tensor:
        """The pixels of clips [N, 3, T, H, W] as [N, L, P, 3], those of a tubelet by time, row, column.

        Raises:
            ConfigError: the tubelets do not divide the clip.
        """
        times, rows, columns = self.grid(clips.shape[2:])
        side, depth = self.patch_size, self.tubelet_size
        # two steps: Paddle is slow at transposing eight axes
        pictures = cpu.transpose(clips.reshape([-1, rows, side, columns, side]), [0, 1, 3, 2, 4])
        parts = pictures.reshape([-1, 3, times, depth, rows * columns, side * side])
        parts = cpu.transpose(parts, [0, 2, 4, 3, 5, 1])
        return parts.reshape([-1, times * rows * columns, depth * side * side, 3])

    def clips(self, tubelets: paddle.Tensor, shape: Sequence[int]) -> paddle.Tensor:
        """The clips, of `shape` [N, 3, T, H, W], whose tubelets [N, L, P, 3] these are."""
        side, depth = self.patch_size, self.tubelet_size
        times, rows, columns = shape[2] // depth, shape[3] // side, shape[4] // side
        parts = tubelets.reshape([-1, times, rows * columns, depth, side * side, 3])
        pictures = parts.transpose([0, 5, 1, 3, 2, 4]).reshape([-1, rows, columns, side, side])
        return pictures.transpose([0, 1, 3, 2, 4]).reshape(list(shape))


_WITHOUT_KEY_BIAS = partial(SelfAttention, key_bias=False)


def encoder(
    channels: int,
    num_heads: int,
    mlp_ratio: float,
    drop_paths: Sequence[float],
    attention: Callable[[int, int], nn.Layer] = _WITHOUT_KEY_BIAS,
) -> nn.LayerList:
    """The blocks of an encoder or decoder, one for each rate of stochastic depth."""
    own, hidden = partial(attention, channels, num_heads), round(channels * mlp_ratio)
    return nn.LayerList([EncoderBlock(channels, own, hidden, rate) for rate in drop_paths])


class TubeletTransformer(Backbone):
    """A plain ViT over the tubelets of a clip, whose output are tokens.

    Args:
        embed_dim: channels of a token.
        depth: blocks.
        num_heads: of each attention; must divide `embed_dim`.
        mlp_ratio: hidden channels of a block's perceptron, per channel; the product is rounded.
        patch_size: side of a tubelet in pixels; must divide the sides of the clips.
        tubelet_size: frames of a tubelet; must divide the frames of the clips.
        drop_path_rate: of stochastic depth in the last block; the rates of the blocks rise from 0 to it.
        pretrained: weights to start from, a path or a URL.
        attention: makes the attention of a block of its channels and heads.

    Raises:
        ConfigError: the heads do not divide the channels.
    """

    data_format = "NLC"
    least_frames = 2
    has_batch_norm = False
    has_fixed_size = True  # its positions are constants of a program
    injected: ClassVar[tuple[str, ...]] = ("attention",)

    def __init__(
        self,
        embed_dim: Size = 384,
        depth: Size = 12,
        num_heads: Size = 6,
        mlp_ratio: NonNegative = 4.0,
        patch_size: SideDivisor = 16,
        tubelet_size: FrameDivisor = 2,
        drop_path_rate: Share = 0.0,
        pretrained: str | None = None,
        attention: Callable[[int, int], nn.Layer] = _WITHOUT_KEY_BIAS,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.out_channels = embed_dim
        self.patch_embed = TubeletEmbedding(embed_dim, patch_size, tubelet_size)
        rates = drop_path_rates(drop_path_rate, depth)
        self.blocks = encoder(embed_dim, num_heads, mlp_ratio, rates, attention)
        self.stage_layers: dict[str, list[str]] = {"stem": ["patch_embed"]}
        self.stage_layers.update({f"block{index + 1}": [f"blocks.{index}"] for index in range(depth)})

    def grid(self, clips: paddle.Tensor) -> Box:
        """Tokens of clips [N, 3, T, H, W] along time, height and width.

        Raises:
            ConfigError: the tubelets do not divide the clip, or a program is exported with free sides.
        """
        return closed(self.patch_embed.grid(clips.shape[2:]), type(self).__name__)

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, normalised float [N, 3, T, H, W], to tokens [N, L, embed_dim].

        L is T / tubelet_size * H / patch_size * W / patch_size, ordered by time, then rows, then columns.

        Raises:
            ConfigError: the tubelets do not divide the clip, or a program is exported with free sides.
        """
        return self.encode(*self.tokens(clips))

    def tokens(self, clips: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        """What enters the first block: tokens [N, L, embed_dim], and what each block takes beside them.

        The latter are tensors [..., L, ...] whose axis 1 runs over the tokens of a clip. So a part of the
        tokens goes through the blocks with the same part of these.
        """
        raise NotImplementedError

    def encode(self, tokens: paddle.Tensor, *positions: paddle.Tensor) -> paddle.Tensor:
        """All tokens [N, L, embed_dim] that `tokens` gives, or some, to the output, in the same shape."""
        for block in self.blocks:
            tokens = block(tokens, *positions)
        return tokens

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        return self.patch_embed.maps(output, clips) if output.ndim == 3 else None


@BACKBONES.register()
class VideoMAEViT(TubeletTransformer):
    """ViT over the tubelets of a clip, as in VideoMAE; clips may have any size and length.

    Its output are tokens: take `VideoMAEHead` to classify with it, and the framework `Pretrain` with
    `VideoMAEDecoder` to pre-train it without labels. S, B and L have `embed_dim` 384, 768 and 1024, `depth`
    12, 12 and 24, and `num_heads` 6, 12 and 16. The g of VideoMAE v2 has 1408, 40 and 16, `patch_size` 14 and
    `mlp_ratio` 4.3637 (48 / 11); its S and B have the sizes above.

    Args:
        pretrained: weights to start from, a path or a URL; of pre-training, too, whose decoder is left out.

    Raises:
        ConfigError: the heads do not divide the channels.

    References:
        Tong et al., "VideoMAE: Masked Autoencoders are Data-Efficient Learners for Self-Supervised Video
        Pre-Training", arXiv 2203.12602, section 3.
        Wang et al., "VideoMAE V2: Scaling Video Masked Autoencoders with Dual Masking", arXiv 2303.16727.
        Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv 2010.11929.
    """

    def tokens(self, clips: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        tokens = self.patch_embed(self.patch_embed.tubelets(clips))
        positions = self.positions(clips, self.out_channels)
        return (tokens + positions.astype(tokens.dtype),)

    def positions(self, clips: paddle.Tensor, channels: int) -> paddle.Tensor:
        """Positions of all tubelets of clips [N, 3, T, H, W], float32 [L, channels]; see `full_clip`."""
        grid = self.grid(clips)
        return fixed_positions(grid, channels, self.full_clip and self.patch_embed.grid(self.full_clip))


_PATCHES = "patch_embed.proj.weight"


class TubeletConverter(RenamingConverter):
    """A converter of networks whose patches are a 3D convolution there, and a linear layer here."""

    def target(self, name: str) -> Target | None:
        target = super().target(name)
        if target is None or self.normalized(name) != _PATCHES:
            return target
        return Target(target.name, (Step("from a convolution to a linear layer", _linear, num_axes=5),))

    def differences(self) -> Sequence[str]:
        """What to set so that the network has the size of the file's; heads do not show in a file."""
        shapes = {self.normalized(name): value.shape for name, value in self.state.items()}
        theirs, own = _size(shapes), _size_of(self.network.backbone)
        wrong = [
            f"MODEL.backbone.{key}={theirs[key]:.5g}" for key in own if theirs.get(key, own[key]) != own[key]
        ]
        text = "the file's encoder has another size"
        return [*super().differences(), *([f"{text}; set {' and '.join(wrong)}"] if wrong else [])]


def _size(shapes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Arguments of the encoder that a file is of, as far as its shapes say them."""
    patches, hidden = shapes.get(_PATCHES, ()), shapes.get("blocks.0.mlp.fc1.weight")
    if len(patches) != 5 or hidden is None:
        return {}
    depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    return {
        "embed_dim": patches[0],
        "depth": depth,
        "mlp_ratio": hidden[0] / patches[0],
        "patch_size": patches[3],
        "tubelet_size": patches[2],
    }


def _size_of(backbone: Any) -> dict[str, float]:
    """The same of a network; nothing of one that is no plain ViT over tubelets."""
    channels, patches = backbone.out_channels, getattr(backbone, "patch_embed", None)
    if not isinstance(patches, TubeletEmbedding):
        return {}
    return {
        "embed_dim": channels,
        "depth": len(backbone.blocks),
        "mlp_ratio": backbone.blocks[0].mlp.fc1.weight.shape[1] / channels,
        "patch_size": patches.patch_size,
        "tubelet_size": patches.tubelet_size,
    }


def _linear(kernel: np.ndarray) -> np.ndarray:
    """A kernel [out, 3, t, h, w] as the weight [t * h * w * 3, out] of `TubeletEmbedding`."""
    return np.moveaxis(kernel, 0, -1).transpose(1, 2, 3, 0, 4).reshape(-1, len(kernel))


_NORM = "head.fc_norm"
_BLOCK = r"(blocks\.\d+\.(?:norm[12]|attn\.(?:qkv|proj|q_bias|v_bias)|mlp\.fc[12]))"


class VideoMAEConverter(TubeletConverter):
    """The authors' files (MCG-NJU/VideoMAE, OpenGVLab/VideoMAEv2), whose names in the parts are ours.

    A pre-trained file has an encoder and a decoder. A network that classifies takes the encoder alone; the
    report says what is left out. The network of `Pretrain` takes both.
    """

    classifier = "head"
    layers = (
        (r"patch_embed\.proj", r"patch_embed.proj"),
        (_BLOCK, r"\1"),
        (r"fc_norm", _NORM),
        (r"norm", r"head.encoder_norm"),
        (r"encoder_to_decoder", r"head.encoder_to_decoder"),
        (r"mask_token", r"head.mask_token"),
        (r"decoder\." + _BLOCK, r"head.\1"),
        (r"decoder\.(norm|head)", r"head.\1"),
    )
    renames: Renames = ((r"^(?:module\.)?(?:encoder\.|backbone\.)?", ""),)  # `encoder.`: of pre-training
    left_out = "only pre-training needs it"

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        names = {self.normalized(name) for name in state}
        # of a pre-trained file a network that classifies takes the encoder, and its classifier starts anew
        self.backbone_only = bool(network.classifier) and f"{self.classifier}.weight" not in names


class HuggingFaceVideoMAEConverter(VideoMAEConverter):
    """VideoMAEForVideoClassification and VideoMAEForPreTraining of Hugging Face's transformers."""

    classifier = "classifier"
    renames = (
        (r"^(?:videomae\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"^(?:videomae\.)?layernorm\.", "norm."),
        (r"^(?:(?:videomae\.)?encoder\.layer|(decoder\.)decoder_layers)\.", r"\1blocks."),
        (r"(blocks\.\d+)\.attention\.attention\.", r"\1.attn."),
        (r"(blocks\.\d+)\.attention\.output\.dense\.", r"\1.attn.proj."),
        (r"(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
        (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
        (r"(blocks\.\d+)\.layernorm_before\.", r"\1.norm1."),
        (r"(blocks\.\d+)\.layernorm_after\.", r"\1.norm2."),
        (r"(blocks\.\d+\.attn)\.(?:\{query,key,value\})\.", r"\1.qkv."),
        (r"(blocks\.\d+\.attn)\.query\.bias$", r"\1.q_bias"),  # transformers 5
        (r"(blocks\.\d+\.attn)\.value\.bias$", r"\1.v_bias"),
    )
    projections = {r".+\.attention\.attention": ("query", "key", "value")}
