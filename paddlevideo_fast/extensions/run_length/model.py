"""The network of the section RLT: a plain video ViT whose blocks take the first token of each run alone."""

from collections.abc import Mapping
from typing import Literal

import paddle

from paddlevideo_fast.config.types import Count, NonNegative
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.run_length.packing import OneQuery, Packing, packed_by, take_packings
from paddlevideo_fast.extensions.run_length.rule import first_of_runs, run_lengths
from paddlevideo_fast.modeling.attentive_head import AttentiveHead
from paddlevideo_fast.modeling.backbones import Backbone
from paddlevideo_fast.modeling.backbones.videomae import TubeletTransformer
from paddlevideo_fast.modeling.heads import BaseHead, LinearHead, VideoMAEHead, mean_logits
from paddlevideo_fast.modeling.recognizers import RecognizerTransformer, Views
from paddlevideo_fast.registry import RECOGNIZERS

_NOTHING_REPEATS = -1.0  # no difference is at most this


@RECOGNIZERS.register()
class RunLengthRecognizer(RecognizerTransformer):
    """A `RecognizerTransformer` whose blocks do without the tokens that repeat the one before them.

    The section RLT puts it in place of `Recognizer3D` and `RecognizerTransformer`, in training, tests, export
    and prediction alike; see there.

    Args:
        backbone: a plain ViT over tubelets, such as `VideoMAEViT` and `VJEPA2`.
        head: a `VideoMAEHead` or an `AttentiveHead`.
        threshold: see RLT.
        learned_lengths: see RLT.

    Raises:
        ConfigError: the parts do not fit.

    Reference: Choudhury et al., "Don't Look Twice: Faster Video Transformers with Run-Length Tokenization",
    arXiv 2411.05222.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: BaseHead,
        runtime_cfg: Mapping[str, Views] | None = None,
        first_weights: Literal["published", "xavier"] = "published",
        threshold: NonNegative | None = 0.1,
        learned_lengths: Count = 0,
    ) -> None:
        super().__init__(backbone, head, runtime_cfg, first_weights)
        self.threshold = threshold
        for block in (*backbone.blocks, *(head.blocks if isinstance(head, AttentiveHead) else ())):
            take_packings(block)
        self.backbone.maps = self._maps
        self.run_lengths: paddle.Tensor | None = None
        if learned_lengths:
            zeros = paddle.nn.initializer.Constant(0.0)
            shape = [learned_lengths, backbone.out_channels]
            self.run_lengths = self.create_parameter(shape, default_initializer=zeros)

    @property
    def _is_plain(self) -> bool:
        """No token is left out, and none has a learned length."""
        return self.threshold is None and self.run_lengths is None

    def _misfits(self, backbone: Backbone, head: BaseHead) -> list[str]:
        problems = super()._misfits(backbone, head)
        if problems:
            return problems
        if not isinstance(backbone, TubeletTransformer):
            text = "its blocks do not attend over all tokens of a clip alone, so none can be left out"
            problems.append(f"MODEL.backbone.name={type(backbone).__name__}: {text}; leave RLT out")
        elif not isinstance(head, (VideoMAEHead, AttentiveHead)):
            text = "takes no clips of different numbers of tokens; take VideoMAEHead or AttentiveHead"
            problems.append(f"MODEL.head.name={type(head).__name__}: {text}, or leave RLT out")
        return problems

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips to logits; see `RecognizerTransformer.forward`."""
        if self._is_plain:
            return RecognizerTransformer.forward(self, clips)
        num_views = self._num_views(clips)
        channels, num_frames, height, width = clips.shape[1:]
        each = clips.reshape([-1, channels, num_views, num_frames // num_views, height, width])
        tokens, packing = self._encoded(each.transpose([0, 2, 1, 3, 4, 5]).flatten(0, 1))
        if isinstance(self.head, AttentiveHead):
            logits = LinearHead.classify(self.head, _probed(self.head, tokens, packing))
        else:
            logits = self.head(packing.means(tokens))
        return mean_logits(logits.reshape([-1, num_views, logits.shape[-1]]), self._average, self.activation)

    def features(self, clips: paddle.Tensor) -> tuple[paddle.Tensor]:
        """What the head takes of clips of one view each: the mean of their tokens, [N, 1, C].

        Raises:
            ConfigError: the head takes the tokens themselves, or the clips are several views in a row.
        """
        if self._is_plain or self._num_views(clips) > 1:
            return RecognizerTransformer.features(self, clips)
        if isinstance(self.head, AttentiveHead):
            text = "takes tokens, and with RLT each clip has another number of them; take VideoMAEHead"
            raise ConfigError(f"MODEL.head.name=AttentiveHead: {text}, or set RLT.threshold to null")
        tokens, packing = self._encoded(clips)
        return (packing.means(tokens),)

    def _encoded(self, clips: paddle.Tensor) -> tuple[paddle.Tensor, Packing]:
        """The output of the backbone for the first token of each run, [tokens, 1, C], and which these are."""
        packing = self.packing(clips)
        tokens, *positions = self.backbone.tokens(clips)
        tokens = packing.packed(tokens)
        if self.run_lengths is not None:
            lengths = paddle.gather(run_lengths(packing.grid).flatten(), packing.numbers)
            row = paddle.clip(lengths, max=self.run_lengths.shape[0]) - 1
            tokens = tokens + paddle.gather(self.run_lengths, row).unsqueeze(1).astype(tokens.dtype)
        return self.backbone.encode(tokens, *map(packing.positions, positions), packing), packing

    def packing(self, clips: paddle.Tensor) -> Packing:
        """Which tokens of clips, normalised float [N, 3, T, H, W] of one view each, stay."""
        patches = self.backbone.patch_embed
        threshold = _NOTHING_REPEATS if self.threshold is None else self.threshold
        with paddle.no_grad():
            return Packing(first_of_runs(clips, patches.tubelet_size, patches.patch_size, threshold))

    def _maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        """What a layer gave as maps of the clips; a token that was left out has the values of its run."""
        if output.ndim != 3 or self._is_plain:
            return type(self.backbone).maps(self.backbone, output, clips)
        whole = output if output.shape[1] > 1 else self.packing(clips).filled(output)
        return type(self.backbone).maps(self.backbone, whole, clips)


def _probed(head: AttentiveHead, tokens: paddle.Tensor, packing: Packing) -> paddle.Tensor:
    """`AttentiveHead.attended` of a packed sequence: the feature of each clip, [N, C]."""
    for block in head.blocks:
        tokens = block(tokens, packing)
    queries = head.query_tokens + paddle.zeros_like(tokens[:1]).expand([packing.grid.shape[0], 1, -1])
    with packed_by(OneQuery(packing)):
        return head.cross(queries, tokens)[:, 0]
