"""Pre-training as a masked autoencoder: a clip is restored from a tenth of it, which needs no labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F

from paddlevideo_fast.config.types import NonNegative, Share, Size
from paddlevideo_fast.device import upload
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones import Backbone
from paddlevideo_fast.modeling.backbones.videomae import VideoMAEViT, encoder
from paddlevideo_fast.modeling.heads import BaseHead
from paddlevideo_fast.modeling.layers.attention import linear, table
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.layers.operators import of_each
from paddlevideo_fast.modeling.recognizers import RecognizerTransformer, start_by_xavier
from paddlevideo_fast.registry import HEADS, RECOGNIZERS

_EVALUATED = (0,)  # key of the one mask that all clips of an evaluation have
_EPSILON = 1e-6
Parts = tuple[paddle.Tensor, paddle.Tensor]


class Decoder(BaseHead):
    """Restores what is hidden of clips from what an encoder makes of the rest.

    A clip has parts that are hidden or visible as a whole; the encoder's `grid` counts them along time,
    height and width. Here `visible` and `hidden` are their numbers, int64 [N, V] and [N, M].

    Args:
        embed_dim: channels of a token in the decoder.
        num_heads: of each attention.

    Attributes:
        encoder: the backbone that it restores clips of.
        has_tubes: the same squares are hidden at all times; False: any parts are.

    Raises:
        ConfigError: the heads do not divide the channels.
    """

    data_format = "NLC"
    num_classes = 0
    encoder: ClassVar[type[Backbone]]
    has_tubes: ClassVar[bool] = True

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ConfigError(f"MODEL.head.num_heads={num_heads}: does not divide embed_dim {embed_dim}")

    def sizes(self, backbone: Any) -> dict[str, tuple[int, int]]:
        """By name, each size that decoder and encoder must have in common: the decoder's, the encoder's."""
        raise NotImplementedError

    def start(self, backbone: Any) -> None:
        """Draws the first weights that are not those of `start_by_xavier`."""

    def restored(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> Parts:
        """Predictions for the hidden parts of normalised clips, and what they should be, float32.

        Both are [N, squares or tubelets, numbers of one].
        """
        raise NotImplementedError

    def pictures(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> dict[str, paddle.Tensor]:
        """See `Pretrain.pictures`."""
        raise NotImplementedError


def start_as_convolution(weight: paddle.Tensor) -> None:
    """Draws the weight [in, out] of a linear layer as PyTorch draws that of a convolution."""
    limit = weight.shape[0] ** -0.5
    weight.set_value(paddle.uniform(weight.shape, min=-limit, max=limit))


@HEADS.register()
class VideoMAEDecoder(Decoder):
    """Restores the pixels of hidden tubelets from the tokens of visible ones; of use in pre-training only.

    VideoMAE gives it half of the encoder's channels and 4 blocks (ViT-S: 192 channels, 3 heads; ViT-B: 384,
    6 heads), or 12 blocks for ViT-L (512 channels, 8 heads).

    Args:
        in_channels: of the encoder's tokens.
        embed_dim: channels of a token in the decoder.
        depth: blocks.
        num_heads: of each attention; must divide `embed_dim`.
        mlp_ratio: hidden channels of a block's perceptron, per channel.
        patch_size, tubelet_size: as of the backbone.
        normalize_targets: restore pixels less the mean of their tubelet and colour, over the standard
            deviation; False: the pixels as `Normalization` gives them.

    Raises:
        ConfigError: the heads do not divide the channels.

    Reference: Tong et al., "VideoMAE", arXiv 2203.12602, section 3.3 and appendix.
    """

    no_weight_decay = ("mask_token",)
    encoder = VideoMAEViT

    def __init__(
        self,
        in_channels: Size,
        embed_dim: Size = 192,
        depth: Size = 4,
        num_heads: Size = 3,
        mlp_ratio: NonNegative = 4.0,
        patch_size: Size = 16,
        tubelet_size: Size = 2,
        normalize_targets: bool = True,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        self.in_channels = in_channels
        self.tubelet = (tubelet_size, patch_size)
        self.normalize_targets = normalize_targets
        self.embed_dim = embed_dim
        self.encoder_norm = LayerNorm(in_channels, epsilon=_EPSILON)
        self.encoder_to_decoder = linear(in_channels, embed_dim, bias=False)
        self.mask_token = table(self, 1, 1, embed_dim)
        self.blocks = encoder(embed_dim, num_heads, mlp_ratio, [0.0] * depth)
        self.norm = LayerNorm(embed_dim, epsilon=_EPSILON)
        self.head = linear(embed_dim, 3 * tubelet_size * patch_size**2)

    def sizes(self, backbone: Any) -> dict[str, tuple[int, int]]:
        theirs = (backbone.patch_embed.tubelet_size, backbone.patch_embed.patch_size)
        return dict(zip(("tubelet_size", "patch_size"), zip(self.tubelet, theirs)))

    def start(self, backbone: Any) -> None:
        start_as_convolution(backbone.patch_embed.proj.weight)  # which the patches are in the authors' code

    def restored(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> Parts:
        tubelets = backbone.patch_embed.tubelets(clips)
        predictions = self._predictions(backbone, clips, tubelets, visible, hidden)
        return predictions, self.targets(of_each(tubelets, hidden))

    def pictures(
        self, backbone: Any, clips: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor
    ) -> dict[str, paddle.Tensor]:
        tubelets = backbone.patch_embed.tubelets(clips)
        shown, truth = of_each(tubelets, visible), of_each(tubelets, hidden)
        predictions = self._predictions(backbone, clips, tubelets, visible, hidden)
        order = paddle.argsort(paddle.concat([visible, hidden], axis=1), axis=1)
        return {
            title: backbone.patch_embed.clips(
                of_each(paddle.concat([shown, parts], axis=1), order), clips.shape
            )
            for title, parts in (
                ("visible", paddle.zeros_like(truth)),
                ("reconstruction", self.pixels(predictions, truth)),
            )
        }

    def _predictions(
        self,
        backbone: VideoMAEViT,
        clips: paddle.Tensor,
        tubelets: paddle.Tensor,
        visible: paddle.Tensor,
        hidden: paddle.Tensor,
    ) -> paddle.Tensor:
        """What `forward` gives for the hidden tubelets of clips [N, 3, T, H, W]."""
        positions = backbone.positions(clips, backbone.out_channels)
        tokens = backbone.patch_embed(of_each(tubelets, visible))
        tokens = backbone.encode(tokens + F.embedding(visible, positions).astype(tokens.dtype))
        return self(tokens, visible, hidden, backbone.positions(clips, self.embed_dim))

    def forward(
        self, tokens: paddle.Tensor, visible: paddle.Tensor, hidden: paddle.Tensor, positions: paddle.Tensor
    ) -> paddle.Tensor:
        """Predictions for hidden tubelets.

        Args:
            tokens: of the visible tubelets, [N, V, in_channels].
            visible: int64 [N, V], their places in their clip.
            hidden: int64 [N, M], the places of the hidden ones.
            positions: of all tubelets, [V + M, embed_dim].

        Returns:
            [N, M, 3 P]: the P pixels of each hidden tubelet by time, row and column, three colours each.
        """
        tokens = self.encoder_to_decoder(self.encoder_norm(tokens))
        tokens = tokens + F.embedding(visible, positions).astype(tokens.dtype)
        masks = (self.mask_token + F.embedding(hidden, positions)).astype(tokens.dtype)
        tokens = paddle.concat([tokens, masks], axis=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, visible.shape[1] :]))

    def targets(self, tubelets: paddle.Tensor) -> paddle.Tensor:
        """What is to be predicted for tubelets [N, M, P, 3]: float32 [N, M, 3 P]; see `normalize_targets`."""
        tubelets = tubelets.astype("float32")
        if self.normalize_targets:
            mean, deviation = _moments(tubelets)
            tubelets = (tubelets - mean) / deviation
        return tubelets.flatten(2)

    def pixels(self, predictions: paddle.Tensor, tubelets: paddle.Tensor) -> paddle.Tensor:
        """Predictions [N, M, 3 P] as pixels [N, M, P, 3].

        Normalised targets say nothing of the mean and the deviation of a tubelet, which come from the true
        `tubelets`, [N, M, P, 3].
        """
        pixels = predictions.astype("float32").reshape(tubelets.shape)
        if not self.normalize_targets:
            return pixels
        mean, deviation = _moments(tubelets)
        return pixels * deviation + mean


def _moments(tubelets: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Mean and standard deviation of each colour of tubelets [N, M, P, 3]; each [N, M, 1, 3]."""
    mean = tubelets.mean(axis=2, keepdim=True)
    squares = (tubelets - mean).square().sum(axis=2, keepdim=True)
    return mean, (squares / (tubelets.shape[2] - 1)).sqrt() + _EPSILON


@RECOGNIZERS.register()
class Pretrain(RecognizerTransformer):
    """Pre-trains a `VideoMAEViT` or a `Hiera` as a masked autoencoder, on videos without labels.

    Most of a clip is hidden: for a `VideoMAEViT` squares, the same ones in all frames; for a `Hiera` any of
    its mask units. The encoder sees what is left, and computes no tokens of the rest; the decoder restores
    the hidden part. The loss is the mean squared error of the hidden pixels. A list needs no labels, and
    labels that it has are not read. Validation measures the same loss, under one mask for all clips.
    Fine-tuning takes the checkpoint as `MODEL.backbone.pretrained`.

    Args:
        backbone: a `VideoMAEViT` or a `Hiera`.
        head: a `VideoMAEDecoder` or a `HieraDecoder`.
        mask_ratio: share of the squares or units that are hidden; at least one is, and at least one is not.

    Raises:
        ConfigError: the parts do not fit.

    References:
        Tong et al., "VideoMAE: Masked Autoencoders are Data-Efficient Learners for Self-Supervised Video
        Pre-Training", arXiv 2203.12602, section 3.
        Ryali et al., "Hiera: A Hierarchical Vision Transformer without the Bells-and-Whistles", arXiv
        2306.00989, section 3.
    """

    data_formats = ("NLC",)
    has_classes = False

    def __init__(self, backbone: Backbone, head: BaseHead, mask_ratio: Share = 0.9) -> None:
        super().__init__(backbone, head)
        start_by_xavier(self)  # as the authors' code does
        head.start(backbone)
        self.mask_ratio = mask_ratio
        self._keys: Sequence[tuple[int, ...]] | None = None

    def _misfits(self, backbone: Backbone, head: BaseHead) -> list[str]:
        theirs = type(backbone).__name__
        if not isinstance(head, Decoder):
            decoder = "HieraDecoder" if theirs == "Hiera" else VideoMAEDecoder.__name__
            name = type(head).__name__
            return [f"MODEL.head.name={name}: classifies, and pre-training restores; take {decoder}"]
        problems = super()._misfits(backbone, head)
        if not problems and not isinstance(backbone, head.encoder):
            text = f"encodes no parts of a clip for {type(head).__name__}; take {head.encoder.__name__}"
            problems = [f"MODEL.backbone.name={theirs}: {text}"]
        elif not problems:
            problems += [
                f"MODEL.head.{key}={own}: the backbone has {other}; give both the same"
                for key, (own, other) in head.sizes(backbone).items()
                if own != other
            ]
        return problems

    @classmethod
    def classes_of(cls, section: Mapping[str, Any]) -> int:
        """0: there are none, so lists are read without labels."""
        return 0

    def key_clips(self, keys: Sequence[tuple[int, ...]]) -> None:
        """What the masks of the next training batch depend on, a key for each clip; see `VideoModel`."""
        self._keys = keys

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """The loss of each clip, float32 [N], of normalised clips [N, 3, T, H, W].

        In training each clip has a mask of its own, drawn from its key (`key_clips`), or from Paddle's
        generator where there are no keys. In evaluation all clips have the same one.

        Raises:
            ConfigError: the parts do not divide the clip, or the mask would hide nothing or all.
        """
        keys, self._keys = self._keys, None
        visible, hidden = self._masks(clips, keys if self.training else None)
        predictions, truth = self.head.restored(self.backbone, clips, visible, hidden)
        return (predictions.astype("float32") - truth).square().mean(axis=[1, 2])

    def _masks(
        self, clips: paddle.Tensor, keys: Sequence[tuple[int, ...]] | None
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """int64 [N, V] and [N, M]: numbers of the visible and of the hidden parts of clips."""
        num_clips = clips.shape[0]
        times, rows, columns = self.backbone.grid(clips)
        times, squares = (times, rows * columns) if self.head.has_tubes else (1, times * rows * columns)
        if keys is None and self.training:
            keys = [(int(number),) for number in paddle.randint(0, 2**31 - 1, [num_clips]).numpy()]
        own = [tube_mask(key, times, squares, self.mask_ratio) for key in keys or [_EVALUATED]]
        masks = np.stack(own if keys else own * num_clips)
        order = np.argsort(masks, axis=1, kind="stable")  # the visible ones come first
        num_visible = int((~masks[0]).sum())
        return upload(order[:, :num_visible].copy()), upload(order[:, num_visible:].copy())

    def loss(self, losses: paddle.Tensor, labels: Any = None) -> paddle.Tensor:
        """The mean of what `forward` gave."""
        return losses.mean()

    def loss_of_each(self, losses: paddle.Tensor, labels: Any = None) -> paddle.Tensor:
        """What `forward` gave, the loss of each clip."""
        return losses

    def count_hits(self, losses: paddle.Tensor, labels: Any) -> dict[str, tuple[int, int]]:
        """Nothing: pre-training has no classes to be right about; see `VideoModel`."""
        return {}

    def pictures(self, clips: paddle.Tensor) -> dict[str, paddle.Tensor]:
        """What a report shows of normalised clips [N, 3, T, H, W]; see `VideoModel`.

        Returns:
            Title to clips of the same shape: what the encoder sees, hidden pixels at 0, and the
            reconstruction, which has the true pixels where they are visible. Mean and contrast of a hidden
            tubelet are the true ones where the targets are normalised.
        """
        visible, hidden = self._masks(clips, None)
        with paddle.no_grad():
            return self.head.pictures(self.backbone, clips, visible, hidden)


def tube_mask(key: Sequence[int], num_times: int, num_squares: int, mask_ratio: float) -> np.ndarray:
    """Which tubelets of a clip are hidden: the same squares at all times, drawn evenly.

    Args:
        key: integers ≥ 0; the mask is a function of them.
        num_times: tubelets along time.
        num_squares: tubelets at one time.
        mask_ratio: share of the squares that are hidden; their number is rounded down.

    Returns:
        bool [num_times * num_squares], in the order of the tokens.

    Raises:
        ConfigError: nothing or everything would be hidden.

    Reference: Tong et al., "VideoMAE", arXiv 2203.12602, section 3.2 (tube masking).
    """
    num_hidden = math.floor(mask_ratio * num_squares + 1e-9)
    if not 0 < num_hidden < num_squares:
        raise ConfigError(
            f"MODEL.mask_ratio={mask_ratio:g}: hides {num_hidden} of the {num_squares} squares of "
            "a clip; take another ratio, larger clips or smaller patches"
        )
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((len(key), *key))))
    hidden = rng.permutation(num_squares) < num_hidden
    return np.tile(hidden, num_times)
