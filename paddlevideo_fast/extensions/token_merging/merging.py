"""The key `merge_tokens`: each layer of a plain ViT merges tokens whose keys are alike; nothing is trained.

Reference: Bolya et al., "Token Merging: Your ViT But Faster", arXiv 2210.09461, section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import paddle
import paddle.nn.functional as F

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.types import Count
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers.attention import EncoderBlock, SelfAttention, attend
from paddlevideo_fast.modeling.recognizers import RecognizerTransformer
from paddlevideo_fast.registry import EXTENSIONS, RECOGNIZERS

KEY = "merge_tokens"
_FRAMEWORKS = ("Recognizer3D", "RecognizerTransformer", "TokenMerging")
_BACKBONE, _HEAD = "VideoMAEViT", "VideoMAEHead"


@EXTENSIONS.register(KEY)
@dataclass(frozen=True)
class MergeTokens(Extension):
    """Fewer tokens from layer to layer, in test, export and prediction.

    Args:
        merge_tokens: how many tokens each layer of a `VideoMAEViT` with a `VideoMAEHead` merges with others
            that are alike; at most half of the tokens of a clip. 0: none.
    """

    merge_tokens: Count = 0

    @classmethod
    def expand(cls, config: Config) -> None:
        """Makes the network of the config one that merges.

        Raises:
            ConfigError: it has no tokens that can be merged.
        """
        num_merged, model = config[KEY], config.get("MODEL")
        if not num_merged or model is None:
            return
        framework, names = model.get("framework"), [_name(model, part) for part in ("backbone", "head")]
        if framework not in _FRAMEWORKS or names != [_BACKBONE, _HEAD]:
            what = f"a {framework} of {' with '.join(names)}"
            text = f"merges tokens of {_BACKBONE} with {_HEAD}, and MODEL is {what}; leave it out"
            raise config.error(f"{KEY}={num_merged}", text)
        config["MODEL"] = {**model, "framework": "TokenMerging", "num_merged": num_merged}

    def problems(self, plan: Any) -> Problems:
        """A training."""
        if self.merge_tokens:
            yield Problem(KEY, "is for test, export and predict; leave it out of a training")


def _name(model: Mapping[str, Any], part: str) -> str:
    return (model.get(part) or {}).get("name", f"no {part}")


class Match(NamedTuple):
    """Which of the tokens with even numbers, A of L, merge with which of the odd ones, B of L.

    Attributes:
        kept: int64 [N, A - r], the even tokens that stay, counted among the even ones.
        merged: int64 [N, r], those that merge.
        targets: int64 [N, r], with which odd tokens, counted among the odd ones.
    """

    kept: paddle.Tensor
    merged: paddle.Tensor
    targets: paddle.Tensor


def match_tokens(keys: paddle.Tensor, num_merged: int) -> Match:
    """Bipartite matching: the even tokens whose most similar odd token is most similar to them.

    Args:
        keys: [N, L, D]; similar keys have a large cosine.
        num_merged: r, at most L / 2.
    """
    keys = keys.astype("float32")
    keys = keys / (keys.square().sum(axis=-1, keepdim=True).sqrt() + 1e-12)
    cosines = paddle.matmul(keys[:, ::2], keys[:, 1::2], transpose_y=True)
    order = paddle.argsort(cosines.max(axis=-1), axis=-1, descending=True)
    merged = order[:, :num_merged]
    targets = _rows(cosines.argmax(axis=-1).unsqueeze(-1), merged).squeeze(-1)
    return Match(order[:, num_merged:], merged, targets)


def merge(tokens: paddle.Tensor, sizes: paddle.Tensor, match: Match) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Tokens [N, L, C] and how many tubelets each stands for, float32 [N, L, 1], to [N, L - r, ...] of both.

    A token is the mean of the tubelets that it stands for. The even tokens that stay come first.
    """
    sums = paddle.concat([tokens.astype("float32") * sizes, sizes], axis=-1)
    even, odd = sums[:, ::2], sums[:, 1::2]
    onto = F.one_hot(match.targets, odd.shape[1])  # [N, r, B]
    odd = odd + paddle.matmul(onto, _rows(even, match.merged), transpose_x=True)
    kept = [_rows(even, match.kept)] if match.kept.shape[1] else []
    joined = paddle.concat([*kept, odd], axis=1)
    sizes = joined[:, :, -1:]
    return (joined[:, :, :-1] / sizes).astype(tokens.dtype), sizes


def _rows(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """Rows [N, K, C] of x [N, L, C] by their numbers [N, K]; a program does not know N."""
    length, channels = x.shape[1:]
    firsts = (paddle.ones_like(index[:, :1]).cumsum(axis=0) - 1) * length
    flat = paddle.gather(x.reshape([-1, channels]), (index + firsts).flatten())
    return flat.reshape([-1, index.shape[1], channels])


def attend_by_size(
    attention: SelfAttention, heads: tuple[paddle.Tensor, ...], sizes: paddle.Tensor
) -> paddle.Tensor:
    """Proportional attention, softmax(scale · query · keyᵀ + log size) · value, to tokens [N, L, channels].

    The logarithm is one more channel of the keys, so attention without a bias computes it.
    """
    query, key, value = heads
    _, length, num_heads, channels = value.shape
    scale = channels**-0.5 if attention.scale is None else attention.scale
    query = paddle.concat([query * scale, paddle.ones_like(query[:, :, :, :1])], axis=-1)
    logs = sizes.log().unsqueeze(2).astype(key.dtype) + paddle.zeros_like(key[:, :, :, :1])
    attended = attend(query, paddle.concat([key, logs], axis=-1), value, scale=1.0)
    return attention.proj(attended.reshape([-1, length, num_heads * channels]))


def merging_block(
    block: EncoderBlock, tokens: paddle.Tensor, sizes: paddle.Tensor | None, num_merged: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """A block of an encoder outside training, whose tokens merge between attention and perceptron.

    Args:
        block: of the encoder.
        tokens: [N, L, C].
        sizes: see `merge`; None: each token is one tubelet.
        num_merged: r; at most half of the tokens are merged.
    """
    query, key, value = block.attn.heads(block.norm1(tokens))
    if sizes is None:
        tokens = tokens + block.attn.mixed(query, key, value)
        sizes = paddle.ones_like(tokens[:, :, :1]).astype("float32")
    else:
        tokens = tokens + attend_by_size(block.attn, (query, key, value), sizes)
    num_merged = min(num_merged, tokens.shape[1] // 2)
    if num_merged:  # else one token is left
        tokens, sizes = merge(tokens, sizes, match_tokens(key.mean(axis=2), num_merged))
    return tokens + block.mlp(block.norm2(tokens)), sizes


@RECOGNIZERS.register()
class TokenMerging(RecognizerTransformer):
    """A `VideoMAEViT` that merges tokens; the key `merge_tokens` makes it of a trained network.

    Where gradients are computed, as for an explanation, no token is merged.

    Args:
        num_merged: tokens that each layer merges.

    Raises:
        ConfigError: as of `RecognizerTransformer`.
    """

    def __init__(self, num_merged: Count = 0, **shared: Any) -> None:
        super().__init__(**shared)
        self.num_merged = num_merged

    def features(self, clips: paddle.Tensor) -> tuple[paddle.Tensor]:
        """What the head takes the mean of: tokens [N, L', C] times their share in it.

        Raises:
            ConfigError: a clip has fewer than 2 tokens for each that a layer merges.
        """
        if not self.num_merged or (paddle.in_dynamic_mode() and paddle.is_grad_enabled()):
            return (self.backbone(clips),)
        (tokens,) = self.backbone.tokens(clips)
        num_tokens, sizes = tokens.shape[1], None
        if self.num_merged > num_tokens // 2:
            text = f"a layer merges at most half of the {num_tokens} tokens of a clip"
            raise ConfigError(f"{KEY}={self.num_merged}: {text}; give at most {num_tokens // 2}")
        for block in self.backbone.blocks:
            tokens, sizes = merging_block(block, tokens, sizes, self.num_merged)
        return (tokens * (sizes * (tokens.shape[1] / num_tokens)).astype(tokens.dtype),)
