"""Clips of different numbers of tokens in one sequence: what keeps them apart.

A packed sequence is [tokens, 1, channels], the tokens of the first clip, then those of the second, and so on.
Layers that compute each token alone take it as it is. Attention goes over the tokens of one clip only, and
stochastic depth leaves out the branch of a clip as a whole; both find the packing in `packings`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import MethodType
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.nn.functional.flash_attention import flash_attn_unpadded

from paddlevideo_fast.device import compute_capability
from paddlevideo_fast.modeling.layers import cpu
from paddlevideo_fast.modeling.layers.attention import DropPath, Heads, attend, packings

_HIDDEN = -1e9  # added to a score that does not count
_MAX_FLASH_CHANNELS = 192  # of a head
_LOW_DTYPES = (paddle.float16, paddle.bfloat16)


@dataclass(eq=False)
class Packing:
    """Where the tokens of a batch of clips are in their packed sequence.

    Args:
        grid: bool [N, tubelets in time, squares], the tokens that are in the sequence; one or more a clip.
    """

    grid: paddle.Tensor

    @cached_property
    def stays(self) -> paddle.Tensor:
        """The same as bool [N, L]."""
        return self.grid.flatten(1)

    @cached_property
    def numbers(self) -> paddle.Tensor:
        """int64 [tokens], the tokens of the sequence as numbers among all N * L; makes the host wait."""
        return paddle.nonzero(self.stays.flatten()).flatten()

    @cached_property
    def slots(self) -> paddle.Tensor:
        """int64 [tokens], the tokens of the sequence as numbers in their clips."""
        return self.numbers % self.stays.shape[1]

    @cached_property
    def clips(self) -> paddle.Tensor:
        """int64 [tokens], the clip of each token."""
        return self.numbers // self.stays.shape[1]

    @cached_property
    def counts(self) -> paddle.Tensor:
        """int64 [N], the tokens of each clip in the sequence."""
        return self.stays.astype("int64").sum(axis=1)

    @cached_property
    def lengths(self) -> list[int]:
        """`counts` on the host; not while a program is traced."""
        return self.counts.tolist()

    def packed(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, C] to the sequence [tokens, 1, C]."""
        return paddle.gather(tokens.flatten(0, 1), self.numbers).unsqueeze(1)

    def positions(self, of_clip: paddle.Tensor) -> paddle.Tensor:
        """What blocks take beside the tokens of a clip, [A, L, ...], of the sequence: [A, tokens, 1, ...]."""
        return paddle.index_select(of_clip, self.slots, axis=1).unsqueeze(2)

    def spread(self, of_clips: paddle.Tensor) -> paddle.Tensor:
        """Values of clips [N, ...] as values of the tokens of the sequence, [tokens, ...]."""
        return paddle.gather(of_clips, self.clips)

    def means(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """The mean of each clip over the tokens of the sequence [tokens, 1, C], float32 [N, 1, C]."""
        _, is_token = self._padding
        sums = (self._padded(tokens).astype("float32") * is_token.unsqueeze(2)).sum(axis=1, keepdim=True)
        return sums / self.counts.astype("float32").reshape([-1, 1, 1])

    def filled(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """The sequence [tokens, 1, C] as all tokens [N, L, C]; one that was left out has those of its run."""
        stays = self.grid.numpy()
        times = np.where(stays, np.arange(stays.shape[1])[:, None], 0)
        numbers = (np.cumsum(stays) - 1).reshape(stays.shape)
        sources = np.take_along_axis(numbers, np.maximum.accumulate(times, axis=1), axis=1)
        return F.embedding(paddle.to_tensor(sources.reshape(len(stays), -1)), tokens.squeeze(1))

    def attend(
        self,
        query: paddle.Tensor,
        key: paddle.Tensor,
        value: paddle.Tensor,
        dropout: float = 0.0,
        scale: float | None = None,
        one_query: bool = False,
    ) -> paddle.Tensor:
        """`attention.attend` of sequences [tokens, 1, heads, D], which keeps the clips apart.

        On a CPU this is attention clip by clip. In 16 bits on a GPU of compute capability 8.0 or more it is
        Paddle's flash attention of sequences of several lengths. Elsewhere clips are padded to the longest.

        Args:
            query: [tokens, 1, heads, D], or [N, 1, heads, D] where there is `one_query` for each clip.
            key: [tokens, 1, heads, D].
            value: [tokens, 1, heads, D].
            dropout: see `attention.attend`.
            scale: see `attention.attend`.
            one_query: see `query`.
        """
        in_dynamic_mode, channels = paddle.in_dynamic_mode(), query.shape[-1]
        if in_dynamic_mode and query.place.is_cpu_place():
            attend_packed = self._clip_by_clip
        elif (
            in_dynamic_mode
            and query.dtype in _LOW_DTYPES
            and compute_capability() >= 80
            and channels % 8 == 0
            and channels <= _MAX_FLASH_CHANNELS
        ):
            attend_packed = self._flash_attend
        else:
            attend_packed = self._padded_attend
        scale = channels**-0.5 if scale is None else scale
        return attend_packed((query, key, value), dropout, scale, one_query)

    def _clip_by_clip(self, heads: Heads, dropout: float, scale: float, one_query: bool) -> paddle.Tensor:
        lengths = self.lengths
        with packed_by(None):
            if min(lengths) == max(lengths):
                shape = [len(lengths), -1, *heads[0].shape[2:]]
                query, key, value = (each.reshape(shape) for each in heads)
                return attend(query, key, value, None, dropout, scale).flatten(0, 1).unsqueeze(1)
            of_queries = [1] * len(lengths) if one_query else lengths
            # one operator for all: the gradient of a slice is as large as the sequence
            parts = [
                paddle.split(cpu.transpose(each.squeeze(1), [1, 0, 2]).unsqueeze(0), sections, axis=2)
                for each, sections in zip(heads, (of_queries, lengths, lengths))
            ]
            mixed = [
                attend(query, key, value, None, dropout, scale, heads_first=True)
                for query, key, value in zip(*parts)
            ]
        return cpu.transpose(paddle.concat(mixed, axis=2).squeeze(0), [1, 0, 2]).unsqueeze(1)

    def _padded_attend(self, heads: Heads, dropout: float, scale: float, one_query: bool) -> paddle.Tensor:
        num_heads, channels = heads[0].shape[2:]
        clips = [self._padded(each) for each in heads[one_query:]]
        clips = [heads[0].flatten(2)] * one_query + clips
        query, key, value = (
            each.reshape([0, 0, num_heads, channels]).transpose([0, 2, 1, 3]) for each in clips
        )
        scores = paddle.matmul(query * scale, key, transpose_y=True).astype("float32")
        _, is_token = self._padding
        weights = F.softmax(scores + (1 - is_token).unsqueeze([1, 2]) * _HIDDEN)
        if dropout:
            weights = F.dropout(weights, dropout)
        mixed = paddle.matmul(weights.astype(value.dtype), value).transpose([0, 2, 1, 3])
        if one_query:
            return mixed
        tokens = paddle.gather(mixed.flatten(0, 1).flatten(1), paddle.nonzero(is_token.flatten()).flatten())
        return tokens.reshape([-1, 1, num_heads, channels])

    def _padded(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """The sequence [tokens, 1, ...] as clips [N, longest, channels]; beyond their ends any token."""
        places, _ = self._padding
        return paddle.gather_nd(tokens.flatten(1), places.unsqueeze(2))

    @cached_property
    def _padding(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """For clips padded to the longest, [N, longest]: where a token is in the sequence, and whether it is.

        The first is int64, the second float32, 1 for a token of the clip and 0 beyond its end.
        """
        counts, ends = self.counts, paddle.cumsum(self.counts)
        number = paddle.arange(0, counts.max(), dtype="int64").unsqueeze(0)
        is_token = number < counts.unsqueeze(1)
        places = number + (ends - counts).unsqueeze(1)
        return paddle.where(is_token, places, paddle.zeros_like(places)), is_token.astype("float32")

    def _flash_attend(self, heads: Heads, dropout: float, scale: float, one_query: bool) -> paddle.Tensor:
        ends = F.pad(paddle.cumsum(self.counts), [1, 0]).astype("int32")
        starts = paddle.arange(len(self.lengths) + 1, dtype="int32") if one_query else ends
        longest = max(self.lengths)
        sequences = (each.squeeze(1) for each in heads)
        of_query = 1 if one_query else longest
        mixed, _ = flash_attn_unpadded(*sequences, starts, ends, of_query, longest, scale, dropout)
        return mixed.unsqueeze(1)


@dataclass(eq=False)
class OneQuery:
    """A packing as attention finds it that has one query for each clip, [N, 1, heads, D]."""

    packing: Packing

    def attend(
        self,
        query: paddle.Tensor,
        key: paddle.Tensor,
        value: paddle.Tensor,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> paddle.Tensor:
        """See `Packing.attend`."""
        return self.packing.attend(query, key, value, dropout, scale, one_query=True)


@contextlib.contextmanager
def packed_by(packing: Packing | OneQuery | None) -> Iterator[None]:
    """Context in which attention and stochastic depth keep the clips of a packing apart; None: of none."""
    before = packings[:]
    packings[:] = [] if packing is None else [packing]
    try:
        yield
    finally:
        packings[:] = before


class _DropPathOfClips(DropPath):
    """Stochastic depth that leaves out the branch of a whole clip, also in a packed sequence."""

    def forward(self, branch: paddle.Tensor) -> paddle.Tensor:
        if not (self.training and self.rate and packings):
            return DropPath.forward(self, branch)
        packing: Packing = packings[-1]
        stays = (paddle.rand([packing.stays.shape[0], 1, 1]) >= self.rate).astype(branch.dtype)
        return branch * packing.spread(stays) / (1 - self.rate)


def take_packings(block: Any) -> None:
    """Lets an `EncoderBlock` take a packed sequence and, after all it takes beside it, its packing.

    The packing is an input, so that a block that runs once more in the backward pass (RUNTIME.recompute) has
    it, too.
    """
    block.drop_path = _DropPathOfClips(block.drop_path.rate)
    block.forward = MethodType(_forward, block)


def _forward(block: Any, tokens: paddle.Tensor, *positions: Any) -> paddle.Tensor:
    packing = positions[-1] if positions and isinstance(positions[-1], Packing) else None
    if packing is None:
        return type(block).forward(block, tokens, *positions)
    with packed_by(packing):
        return type(block).forward(block, tokens, *positions[:-1])
