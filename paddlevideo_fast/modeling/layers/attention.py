"""What transformers are made of: attention, the two-layer perceptron, stochastic depth, encoder blocks."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.incubate.nn.memory_efficient_attention import memory_efficient_attention

from paddlevideo_fast.device import compute_capability
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers import cpu

Heads: TypeAlias = Sequence[paddle.Tensor]  # queries, keys and values
_SWAPPED = (0, 2, 1, 3)  # from [N, L, heads, D] to [N, heads, L, D], and back
_LOW_DTYPES = (paddle.float16, paddle.bfloat16)
_MAX_FLASH_CHANNELS = 192  # of a head; more have a gradient on some GPUs only

# While clips of several lengths share a sequence, the last of these attends in place of `attend`.
packings: list[Any] = []
# Each is called with the multiply-adds of a product of two computed tensors, which no layer's weight shows.
flop_hooks: list[Callable[[int], None]] = []


def note_product(num_macs: int) -> None:
    """Gives the hooks the multiply-adds of a product of two computed tensors, as attention has them."""
    for hook in flop_hooks:
        hook(num_macs)


def attend(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    bias: paddle.Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    mask: paddle.Tensor | None = None,
    heads_first: bool = False,
) -> paddle.Tensor:
    """Attention, softmax(scale · query · keyᵀ + bias + mask) · value.

    Where `_is_fused`, this is an operator of Paddle: flash attention or, with a bias or a mask,
    memory-efficient attention. On a CPU it goes over blocks of scores, where no weights are dropped.
    Elsewhere it is two matrix products with the softmax between them in float32.

    Args:
        query: [N, L, heads, D].
        key: [N, M, heads, D].
        value: [N, M, heads, D].
        bias: is added to the scores, [heads, L, M].
        dropout: share of the weights that are dropped; 0 outside training.
        scale: of the scores; None: 1 / sqrt(D).
        mask: is added too, to all heads; [G, L, M] for each G of the N in turn. It has no gradient.
        heads_first: the tensors are [N, heads, L or M, D] already, as matrix products take them.

    Returns:
        [N, L, heads, D], or [N, heads, L, D] with `heads_first`.

    Reference: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.2.1.
    """
    if packings:
        return packings[-1].attend(query, key, value, dropout, scale)
    num_keys = key.shape[2 if heads_first else 1]
    if paddle.in_dynamic_mode():
        note_product(math.prod(query.shape[:-1]) * num_keys * (query.shape[-1] + value.shape[-1]))
    is_biased = bias is not None or mask is not None
    is_fused = _is_fused(query, value, num_keys if is_biased else 0)
    heads = [query, key, value]
    if is_fused == heads_first:
        heads = [cpu.transpose(x, _SWAPPED) for x in heads]
    if is_fused and is_biased:
        mixed = _biased_attend(heads, _total(bias, mask), dropout, scale)
    elif is_fused:
        mixed = flash_attend(heads, dropout, scale)
    else:
        mixed = _plain_attend(heads, bias, mask, dropout, scale)
    return cpu.transpose(mixed, _SWAPPED) if is_fused == heads_first else mixed


def _is_fused(query: paddle.Tensor, value: paddle.Tensor, num_biased_keys: int) -> bool:
    """Whether a fused operator takes these: 16 bits on a GPU of compute capability 8.0 or more.

    Paddle 2.6 chooses flash attention by the channels alone, and it fails for other types. While a program is
    traced, Paddle 3 tells the types that it will compute with, and Paddle 2.6 tells float32. With a bias, the
    operator takes multiples of 8 keys (`num_biased_keys`; 0: there is no bias).
    """
    if query.dtype not in _LOW_DTYPES or compute_capability() < 80:
        return False
    channels = query.shape[-1], value.shape[-1]
    if num_biased_keys:
        return query.shape[0] > 0 and all(size % 8 == 0 for size in (*channels, num_biased_keys))
    return max(channels) <= _MAX_FLASH_CHANNELS


def _total(bias: paddle.Tensor | None, mask: paddle.Tensor | None) -> paddle.Tensor:
    """What is added to the scores, [heads, L, M] or [G, heads, L, M]; without a bias there is one head."""
    if mask is None:
        return bias
    return mask.unsqueeze(1) if bias is None else bias + mask.unsqueeze(1)


def _plain_attend(
    heads: Heads, bias: paddle.Tensor | None, mask: paddle.Tensor | None, dropout: float, scale: float | None
) -> paddle.Tensor:
    """`attend` of [N, heads, L, D] by matrix products."""
    query, key, value = heads
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if cpu.attends(query, key, dropout):
        return cpu.attend(query, key, value, scale, bias, mask)
    scores = paddle.matmul(query * scale, key, transpose_y=True).astype("float32")
    if bias is not None or mask is not None:
        added = _total(bias, mask).astype("float32")
        scores = (scores.reshape([-1, *added.shape]) + added).reshape([-1, *scores.shape[1:]])
    weights = F.softmax(scores)
    if dropout:
        weights = F.dropout(weights, dropout)
    return paddle.matmul(weights.astype(value.dtype), value)


def flash_attend(heads: Heads, dropout: float = 0.0, scale: float | None = None) -> paddle.Tensor:
    """`attend` of [N, L, heads, D] without a bias, by Paddle's flash attention."""
    query, key, value = heads
    channels, wanted = query.shape[-1], value.shape[-1]
    if scale is not None:
        query = query * (scale * channels**0.5)
    if channels != wanted or channels % 8:  # flash attention wants equal lengths, and multiples of 8
        length = -(-max(channels, wanted) // 8) * 8
        query = query * (length / channels) ** 0.5
        query, key, value = (F.pad(x, [0, length - x.shape[-1], 0, 0]) for x in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    return mixed if mixed.shape[-1] == wanted else mixed[..., :wanted]


def _biased_attend(heads: Heads, added: paddle.Tensor, dropout: float, scale: float | None) -> paddle.Tensor:
    """`attend` of [N, L, heads, D] by Paddle's memory-efficient attention.

    What is `added` to the scores is [heads, L, M] or [G, heads, L, M], and has a gradient. The operator
    writes a gradient for each of the N without a check. So it gets a bias for each.
    """
    query, key, value = heads
    num_all, length, num_heads, _ = query.shape
    num_apart = added.shape[0] if added.ndim == 4 else 1
    shape = [num_all // num_apart, num_apart, num_heads, length, key.shape[1]]
    of_each = added.astype(query.dtype).expand(shape).flatten(0, 1)
    return memory_efficient_attention(query, key, value, of_each, p=dropout, scale=scale)


class SelfAttention(nn.Layer):
    """Multi-head attention of tokens among themselves; the sublayers are `qkv` and `proj`, as in PaddleVideo.

    Args:
        channels: of the tokens.
        num_heads: must divide `channels`.
        qkv_bias: the layer that makes queries, keys and values has a bias.
        key_bias: False: keys have none; those of queries and values are `q_bias` and `v_bias`, as in BEiT.
        scale: of the scores; None: 1 / sqrt(channels of a head).
        attention_dropout: of the attention's weights.
        dropout: after the last linear layer.

    Raises:
        ConfigError: the heads do not divide the channels.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        qkv_bias: bool = True,
        key_bias: bool = True,
        scale: float | None = None,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if channels % num_heads:
            raise ConfigError(f"MODEL.backbone.num_heads={num_heads}: does not divide {channels} channels")
        self.num_heads = num_heads
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.qkv = linear(channels, 3 * channels, bias=qkv_bias and key_bias)
        self.key_bias = key_bias
        if not key_bias:
            self.q_bias = self.create_parameter([channels], is_bias=True)
            self.v_bias = self.create_parameter([channels], is_bias=True)
        self.proj = linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: paddle.Tensor, bias: paddle.Tensor | None = None, mask: paddle.Tensor | None = None
    ) -> paddle.Tensor:
        """Tokens [N, L, channels] to the same shape; `bias` and `mask` as of `attend`."""
        query, key, value = self.heads(x)
        return self.mixed(query, key, value, bias, mask)

    def heads(self, x: paddle.Tensor) -> Heads:
        """Queries, keys and values of tokens [N, L, channels], each [N, L, heads, D]."""
        length, channels = x.shape[1:]
        qkv = self.qkv(x)
        if not self.key_bias:
            of_all = paddle.concat([self.q_bias, paddle.zeros_like(self.q_bias), self.v_bias])
            qkv = cpu.add_bias(qkv, of_all.astype(qkv.dtype))
        return qkv.reshape([-1, length, 3, self.num_heads, channels // self.num_heads]).unbind(2)

    def mixed(
        self,
        query: paddle.Tensor,
        key: paddle.Tensor,
        value: paddle.Tensor,
        bias: paddle.Tensor | None = None,
        mask: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Tokens [N, L, channels] of queries, keys and values [N, L, heads, D]."""
        dropout = self.attention_dropout if self.training else 0.0
        attended = attend(query, key, value, bias, dropout, self.scale, mask)
        _, length, num_heads, channels = query.shape
        return self.dropout(self.proj(attended.reshape([-1, length, num_heads * channels])))


class Mlp(nn.Layer):
    """Two linear layers with GELU between them; the sublayers are `fc1` and `fc2`, as in PaddleVideo.

    Args:
        channels: of input and output.
        hidden_channels: between the layers.
        dropout: after each of the layers.
    """

    def __init__(self, channels: int, hidden_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = linear(channels, hidden_channels)
        self.fc2 = linear(hidden_channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[..., channels] to the same."""
        return self.dropout(self.fc2(self.dropout(cpu.gelu(self.fc1(x)))))


def linear(in_channels: int, out_channels: int, bias: bool = True) -> nn.Linear:
    """A linear layer as transformers start it: truncated normal weights, a bias of zeros."""
    return cpu.Linear(
        in_channels,
        out_channels,
        weight_attr=paddle.ParamAttr(initializer=nn.initializer.TruncatedNormal(std=0.02)),
        bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)) if bias else False,
    )


def class_and_patches(tokens: paddle.Tensor, axis: int = 1) -> list[paddle.Tensor]:
    """The class token, which is the first one along the axis, and the patches.

    On a CPU, the gradient of two slices takes ten times as long as this.
    """
    return paddle.split(tokens, [1, -1], axis=axis)


def table(owner: nn.Layer, *shape: int) -> paddle.Tensor:
    """A new parameter of a layer, such as a table of positions; truncated normal, as its linear layers."""
    return owner.create_parameter(list(shape), default_initializer=nn.initializer.TruncatedNormal(std=0.02))


class DropPath(nn.Layer):
    """Stochastic depth: in training, some samples go without a residual branch, which is scaled for the rest.

    Args:
        rate: share of the samples that go without the branch.

    Reference: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382, section 3.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: paddle.Tensor) -> paddle.Tensor:
        """The output of a branch, [N, ...], to the same shape."""
        if not (self.training and self.rate):
            return branch
        kept = (paddle.rand([branch.shape[0]] + [1] * (branch.ndim - 1)) >= self.rate).astype(branch.dtype)
        return branch * kept / (1 - self.rate)


def drop_path_rates(last: float, depth: int) -> list[float]:
    """The rates of `depth` blocks: they rise in equal steps from 0 to `last`."""
    return [last * index / max(depth - 1, 1) for index in range(depth)]


class EncoderBlock(nn.Layer):
    """Attention and perceptron, each after a layer norm and beside a shortcut, as in ViT.

    The sublayers are `norm1`, `attn`, `norm2` and `mlp`, as in PaddleVideo.

    Args:
        channels: of the tokens.
        attention: makes the attention.
        hidden_channels: of the perceptron.
        drop_path: rate of stochastic depth.
        dropout: in the perceptron.
        epsilon: of the layer norms.
        in_channels: of the tokens before the block; None: `channels`. Where they differ, the sublayer `proj`
            is there for a subclass's shortcut.

    Reference: Dosovitskiy et al., "An Image Is Worth 16x16 Words", arXiv 2010.11929, section 3.1.
    """

    def __init__(
        self,
        channels: int,
        attention: Callable[[], nn.Layer],
        hidden_channels: int,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        epsilon: float = 1e-6,
        in_channels: int | None = None,
    ) -> None:
        super().__init__()
        in_channels = in_channels or channels
        self.norm1 = cpu.LayerNorm(in_channels, epsilon=epsilon)
        self.attn = attention()
        self.proj = linear(in_channels, channels) if in_channels != channels else None
        self.drop_path = DropPath(drop_path)
        self.norm2 = cpu.LayerNorm(channels, epsilon=epsilon)
        self.mlp = Mlp(channels, hidden_channels, dropout=dropout)

    def forward(self, x: paddle.Tensor, *positions: paddle.Tensor) -> paddle.Tensor:
        """Tokens [N, L, channels] to the same shape; `positions` go to an attention that takes them."""
        x = x + self.drop_path(self.attn(self.norm1(x), *positions))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def shrink_residuals(blocks: Iterable[EncoderBlock]) -> None:
    """Divides the first weights that end the branches of block n, counted from 1, by √(2n).

    So what the branches add up to does not grow with the depth, as the authors of V-JEPA start their ViTs.
    """
    for number, block in enumerate(blocks, 1):
        ends = (getattr(block.attn, "proj", None), block.mlp.fc2)
        for layer in ends:
            if layer is not None:
                layer.weight.set_value(layer.weight / math.sqrt(2 * number))
