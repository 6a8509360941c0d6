"""Operators as a CPU computes them fast; devices and exported programs take Paddle's own.

Paddle's CPU kernels go over the memory once for each elementary step, and sum columns slowly. Here oneDNN
computes GELU and layer norm, attention goes over blocks of scores, and sums are products with ones. Matrix
products stay Paddle's. Results and gradients agree with Paddle's to rounding.

`tools/benchmark.py cpu` compares them with Paddle's and PyTorch's; docs/adr/0042 has the reasons.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.extensions.cpu import onednn
from paddlevideo_fast.extensions.cpu.onednn import Argument
from paddlevideo_fast.extensions.cpu.tensors import as_array, empty, is_on_cpu, wanted

_GELU = 0x31  # oneDNN's name of its computation by the error function
_SCALE_AND_SHIFT = 2 | 4  # oneDNN's flags of a layer norm with a weight and a bias
_BLOCK_OF_SCORES = 2**22  # 16 MB
_MIN_SCORES = 2**13  # of a head; blocks of fewer take longer than Paddle
_SMALL_SCORE = 60.0  # float32 holds its exponential, also a billion times
_TINY = np.float32(1e-30)


def transpose(x: paddle.Tensor, order: Sequence[int]) -> paddle.Tensor:
    """A transposed copy of a tensor; Paddle copies a transposed tensor number by number on a CPU."""
    return _Transpose.apply(x, tuple(order)) if is_on_cpu(x) else x.transpose(order)


class _Transpose(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, order: tuple[int, ...]) -> paddle.Tensor:
        ctx.order = order
        return _transposed(x, order)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _transposed(gradient, tuple(np.argsort(ctx.order)))


def _transposed(x: paddle.Tensor, order: tuple[int, ...]) -> paddle.Tensor:
    array = as_array(x).transpose(order)
    out = empty(array.shape)
    as_array(out)[...] = array
    return out


# --- GELU


def gelu(x: paddle.Tensor) -> paddle.Tensor:
    """The Gaussian error linear unit x · Φ(x), Φ of the normal distribution; for any shape.

    Reference: Hendrycks, Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415.
    """
    return _Gelu.apply(x) if is_on_cpu(x) and onednn.library() else F.gelu(x)


class _Gelu(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor) -> paddle.Tensor:
        x, out = x.contiguous(), empty(x.shape)  # what runs twice, by RUNTIME.recompute, keeps no strides
        ctx.save_for_backward(x)
        _prepared_gelu(math.prod(x.shape))[0]({Argument.X: x, Argument.OUT: out})
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        (x,) = ctx.saved_tensor()
        gradient, out = gradient.contiguous(), empty(x.shape)
        given = {Argument.X: x, Argument.GRADIENT: gradient, Argument.OF_X: out}
        _prepared_gelu(math.prod(x.shape))[1](given)
        return out


@onednn.prepared
def _prepared_gelu(size: int) -> tuple[onednn.Primitive, onednn.Primitive]:
    """GELU of some numbers, and its gradient."""
    numbers, unused = onednn.layout([size]), ctypes.c_float(0)
    forward = onednn.description("eltwise_forward", onednn.TRAINING, _GELU, *[numbers] * 2, unused, unused)
    backward = onednn.description("eltwise_backward", _GELU, *[numbers] * 3, unused, unused, forward)
    return onednn.Primitive(forward), onednn.Primitive(backward)


# --- linear layers and layer norm; they call no `super()`, which Paddle 2.6 cannot trace into a program


class Linear(nn.Linear):
    """Paddle's linear layer; on a CPU the gradient of the bias is a product with ones, not a slow sum."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[..., in_features] to [..., out_features]."""
        if self.bias is None or not is_on_cpu(x):
            return nn.Linear.forward(self, x)
        return add_bias(paddle.matmul(x, self.weight), self.bias)


def add_bias(x: paddle.Tensor, bias: paddle.Tensor) -> paddle.Tensor:
    """[..., channels] plus a bias of each channel, whose gradient is a product with ones."""
    return _AddBias.apply(x, bias) if is_on_cpu(x) else x + bias


class _AddBias(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, bias: paddle.Tensor) -> paddle.Tensor:
        ctx.wanted = [not x.stop_gradient, not bias.stop_gradient]
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        rows = gradient.reshape([-1, gradient.shape[-1]])
        return wanted(
            ctx, gradient, paddle.matmul(paddle.ones([1, rows.shape[0]], "float32"), rows).reshape([-1])
        )


class LayerNorm(nn.LayerNorm):
    """Paddle's layer norm over the last axis; on a CPU it is oneDNN's.

    Where the weight is frozen, Paddle's CPU kernel leaves it out of the gradient of its input.

    Reference: Ba, Kiros, Hinton, "Layer Normalization", arXiv 1607.06450.
    """

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[..., channels] to the same."""
        if self.weight is None or self.bias is None or len(self._normalized_shape) > 1 or not is_on_cpu(x):
            return nn.LayerNorm.forward(self, x)
        if onednn.library() is None:
            return F.layer_norm(x, self._normalized_shape, epsilon=self._epsilon) * self.weight + self.bias
        return _LayerNorm.apply(x, self.weight, self.bias, self._epsilon)


class _LayerNorm(PyLayer):
    inputs = Argument.X, Argument.SCALE, Argument.SHIFT, Argument.MEAN, Argument.VARIANCE
    gradients = Argument.OF_X, Argument.OF_SCALE, Argument.OF_SHIFT

    @staticmethod
    def forward(
        ctx: Any, x: paddle.Tensor, weight: paddle.Tensor, bias: paddle.Tensor, epsilon: float
    ) -> paddle.Tensor:
        ctx.wanted = [not one.stop_gradient for one in (x, weight, bias)]
        x, out = x.contiguous(), empty(x.shape)
        saved = x, weight, bias, empty(x.shape[:-1]), empty(x.shape[:-1])
        ctx.save_for_backward(*saved)
        ctx.form = math.prod(x.shape[:-1]), x.shape[-1], epsilon
        given = dict(zip(_LayerNorm.inputs, saved))
        _prepared_layer_norm(*ctx.form)[0]({**given, Argument.OUT: out})
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        saved = ctx.saved_tensor()
        given = dict(zip(_LayerNorm.inputs, saved))
        gradients = [empty(one.shape) for one in saved[:3]]
        written = dict(zip(_LayerNorm.gradients, gradients))
        _prepared_layer_norm(*ctx.form)[1]({**given, Argument.GRADIENT: gradient.contiguous(), **written})
        return wanted(ctx, *gradients)


@onednn.prepared
def _prepared_layer_norm(
    rows: int, channels: int, epsilon: float
) -> tuple[onednn.Primitive, onednn.Primitive]:
    """Layer norm and its gradients."""
    numbers, statistics = onednn.layout([rows, channels]), onednn.layout([rows])
    how = statistics, ctypes.c_float(epsilon), _SCALE_AND_SHIFT
    forward = onednn.description("layer_normalization_forward", onednn.TRAINING, *[numbers] * 2, *how)
    backward = onednn.description(
        "layer_normalization_backward", onednn.BACKWARD, *[numbers] * 3, *how, forward
    )
    return onednn.Primitive(forward), onednn.Primitive(backward)


# --- attention


def slices(size: int, step: int) -> Iterator[slice]:
    """`size` numbers in steps."""
    return (slice(begin, min(begin + step, size)) for begin in range(0, size, step))


def attends(query: paddle.Tensor, key: paddle.Tensor, dropout: float) -> bool:
    """Whether `attend` takes heads [N, heads, L, D]: it drops no weights, and few scores stay Paddle's."""
    # one condition: Paddle traces all parts of nested ones into a program, where a tensor has no place
    return is_on_cpu(query) and not dropout and query.shape[2] * key.shape[2] >= _MIN_SCORES


def attend(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    scale: float,
    bias: paddle.Tensor | None,
    mask: paddle.Tensor | None,
) -> paddle.Tensor:
    """`attention.attend` of [N, heads, L, D] on a CPU, by blocks of scores; the gradient computes them again.

    So the scores are never in memory as a whole, as in flash attention.

    Reference: Dao et al., "FlashAttention", arXiv 2205.14135, sections 3.1 and B.
    """
    of_bias = () if bias is None else (bias,)
    return _Attention.apply(query, key, value, scale, None if mask is None else as_array(mask), *of_bias)


class _Attention(PyLayer):
    """Goes over the scores as rarely as possible: once takes a fifth of the time of their product.

    If all scores are small, the highest is not subtracted before the exponential. In the gradient, a product
    subtracts one number from each row: the vectors of the row end with this number, and the others with 1.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: paddle.Tensor,
        key: paddle.Tensor,
        value: paddle.Tensor,
        scale: float,
        mask: np.ndarray | None,
        *bias: paddle.Tensor,
    ) -> paddle.Tensor:
        ctx.wanted = [not one.stop_gradient for one in (query, key, value, *bias)]
        ctx.scale, ctx.mask, ctx.num_heads = scale, mask, query.shape[1]
        queries, keys, values = _of_heads(query, scale), _of_heads(key), _of_heads(value)
        scores = _Scores(queries, keys, ctx.num_heads, mask, bias)
        are_small = scores.are_small()
        out = empty([*query.shape[:3], value.shape[3]])
        written = as_array(out).reshape(-1, *out.shape[2:])
        ctx.totals = np.empty(written.shape[:2], "float32")  # of the exponentials, as logarithms
        for heads, rows in scores.blocks():
            weights, weight = scores.of(heads, rows)
            highest = np.zeros(1, "float32") if are_small else weight.max(-1, keepdims=True)
            if not are_small:
                weight -= highest
            scores.exponentiate(weight)
            total = weight.sum(-1, keepdims=True)
            np.divide(as_array(paddle.matmul(weights, values[heads])), total, out=written[heads, rows])
            ctx.totals[heads, rows] = (highest + np.log(total))[..., 0]
        ctx.save_for_backward(queries, keys, values, out.detach(), *(one.contiguous() for one in bias))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        queries, keys, values, out, *bias = ctx.saved_tensor()
        given = _of_heads(gradient)
        shared = np.einsum("hij,hij->hi", as_array(given), as_array(out).reshape(given.shape))
        longer_given, longer_values = _longer(given, -shared), _longer(values, 1)
        scores = _Scores(_longer(queries, -ctx.totals), _longer(keys, 1), ctx.num_heads, ctx.mask, bias)
        of_queries, of_bias = empty(queries.shape), [paddle.zeros(one.shape, "float32") for one in bias]
        # [H, D, M]: a transposed product of a wide matrix is slower than one of a narrow matrix
        of_keys, of_values = (
            paddle.zeros([len(x), x.shape[2], x.shape[1]], "float32") for x in (keys, values)
        )
        of_query, of_key, of_value = map(as_array, (of_queries, of_keys, of_values))
        for heads, rows in scores.blocks():
            weights, weight = scores.of(heads, rows)
            scores.exponentiate(weight)
            of_value[heads] += as_array(paddle.matmul(given[heads, rows], weights, transpose_x=True))
            changes = paddle.matmul(longer_given[heads, rows], longer_values[heads], transpose_y=True)
            change = as_array(changes)
            change *= weight
            if bias:
                as_array(of_bias[0])[scores.numbers(heads), rows] += change
            np.multiply(as_array(paddle.matmul(changes, keys[heads])), ctx.scale, out=of_query[heads, rows])
            of_key[heads] += as_array(paddle.matmul(queries[heads, rows], changes, transpose_x=True))
        gradients = of_queries, _transposed(of_keys, (0, 2, 1)), _transposed(of_values, (0, 2, 1))
        by_heads = (one.reshape([-1, ctx.num_heads, *one.shape[1:]]) for one in gradients)
        return wanted(ctx, *by_heads, *of_bias)


def _of_heads(x: paddle.Tensor, scale: float = 1.0) -> paddle.Tensor:
    """[N, heads, L, D] to a scaled copy [N * heads, L, D]; the tensor itself if nothing is to copy."""
    if scale == 1.0:
        return x.contiguous().flatten(0, 1)
    out = empty(x.shape)
    np.multiply(as_array(x), np.float32(scale), out=as_array(out))
    return out.flatten(0, 1)


def _longer(x: paddle.Tensor, end: float | np.ndarray) -> paddle.Tensor:
    """[H, L, D] to a copy [H, L, D + 1] with the number `end`, or those of [H, L], last."""
    out = empty([*x.shape[:2], x.shape[2] + 1])
    written = as_array(out)
    written[..., :-1] = as_array(x)
    written[..., -1] = end
    return out


@dataclass(eq=False)
class _Scores:
    """The scores of attention, a block at a time: some rows of a head, or all rows of some heads.

    Args:
        queries: scaled, [N * heads, L, D].
        keys: [N * heads, M, D].
        num_heads: heads of one of the N.
        mask: None, or what is added, [G, L, M] for each G of the N in turn.
        bias: nothing, or a tensor that is added, [heads, L, M].
    """

    queries: paddle.Tensor
    keys: paddle.Tensor
    num_heads: int
    mask: np.ndarray | None
    bias: Sequence[paddle.Tensor]

    def are_small(self) -> bool:
        """Whether all exponentials and their sums are normal numbers, so that no highest need be subtracted.

        A score is at most the product of the lengths of its two vectors.
        """
        if self.bias or self.mask is not None:
            return False
        squares = (
            np.einsum("hij,hij->hi", one, one).max() for one in map(as_array, (self.queries, self.keys))
        )
        return math.prod(squares) < _SMALL_SCORE**2

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Heads, which all belong to one of the N, and rows."""
        length, num_keys = self.queries.shape[1], self.keys.shape[1]
        most = max(1, _BLOCK_OF_SCORES // (length * num_keys))
        step = next(
            size for size in range(self.num_heads, 0, -1) if self.num_heads % size == 0 and size <= most
        )
        for heads in slices(self.queries.shape[0], step):
            for rows in slices(length, max(1, _BLOCK_OF_SCORES // num_keys)):
                yield heads, rows

    def of(self, heads: slice, rows: slice) -> tuple[paddle.Tensor, np.ndarray]:
        """The scores of a block, [heads, rows, M], and their memory."""
        scores = paddle.matmul(self.queries[heads, rows], self.keys[heads], transpose_y=True)
        array = as_array(scores)
        for bias in self.bias:
            array += as_array(bias)[self.numbers(heads), rows]
        if self.mask is not None:
            array += self.mask[heads.start // self.num_heads % len(self.mask), rows]
        return scores, array

    def numbers(self, heads: slice) -> slice:
        """The heads of a block as numbers within their clip."""
        begin = heads.start % self.num_heads
        return slice(begin, begin + heads.stop - heads.start)

    def exponentiate(self, scores: np.ndarray) -> None:
        """Replaces scores of at most 0 by their exponentials.

        A mask makes exponentials that float32 holds only as denormal numbers, with which a processor computes
        some ten times slower. They become 0.
        """
        np.exp(scores, out=scores)
        if self.mask is not None:
            scores -= _TINY
            np.maximum(scores, 0, out=scores)
