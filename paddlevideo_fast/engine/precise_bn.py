"""Batch-norm statistics of the data as a whole, in place of averages that lag behind the weights."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.engine.data_pass import visit_batches
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.errors import BadSampleShareError

Statistics = Dict[str, Tuple[Any, Any]]


def population_statistics(
    model: Any,
    loader: Any,
    preprocess: Callable[[Any], Any],
    epoch: int = 0,
    max_batches: Optional[int] = None,
    on_failures: Optional[Callable[[Any, Any], None]] = None,
    show_progress: bool = False,
    check_stop: Optional[Callable[[], None]] = None,
    precision: Optional[Precision] = None,
    distribution: Optional[Distribution] = None,
) -> Statistics:
    """Mean and variance of what reaches each batch norm, over all batches and ranks; changes nothing.

    Every batch is normalised by its own statistics, as in training but as one part, without dropout. The
    variance is that of the population, E[x²] − E[x]², not the mean of the batches' variances, and a batch
    weighs as much as it has values. Batch norms that training does not update, either, are left out.

    Args:
        model: `model(clips)`; its train or eval mode is the same afterwards.
        loader: of clips as the trained model will meet them; on each rank its own share.
        preprocess: uint8 clips [N, T, H, W, C] to the model's float32 input.
        epoch: of the loader.
        max_batches: stops after so many, counted on all ranks together; None: all.
        on_failures: called with the `failures` and `replaced` of each batch that has any. In the end each
            rank has called it with those of all.
        show_progress: draws a bar; for a terminal.
        check_stop: called before each batch; what it raises ends the pass.
        precision: as the `Trainer`'s; the statistics are float32 with all of them.
        distribution: the processes that share the data; what one of them raises is raised on all.

    Returns:
        (mean, variance), each float64 [C], by the structured names of the batch norms.

    Raises:
        BadSampleShareError: no clip decodes.

    Reference: Wu and Johnson, "Rethinking 'Batch' in BatchNorm", arXiv 2105.07576, section 3.
    """
    distribution = distribution or Distribution()
    forward = functools.partial((precision or Precision()).forward, model)
    with paddle.no_grad(), _moments(model) as moments:
        visit_batches(
            lambda batch: forward(preprocess(batch.clips)),
            model,
            loader,
            epoch,
            max_batches,
            "precise BN",
            on_failures,
            show_progress,
            check_stop,
            distribution,
        )
        return _of_all_ranks(moments, distribution)


def put_statistics(model: Any, statistics: Statistics) -> Statistics:
    """Gives batch norms the running statistics of these names, and returns those they had."""
    layers = dict(model.named_sublayers())
    earlier = {}
    with paddle.no_grad():
        for name, (mean, variance) in statistics.items():
            layer = layers[name]
            earlier[name] = layer._mean.clone(), layer._variance.clone()
            paddle.assign(mean.astype(layer._mean.dtype), layer._mean)
            paddle.assign(variance.astype(layer._variance.dtype), layer._variance)
    return earlier


class _Moments:
    """Number of values, mean and sum of squared deviations of each channel, over the batches of a layer."""

    def __init__(self, num_channels: int) -> None:
        self.count = 0
        self.mean = paddle.zeros([num_channels], "float64")
        self.squares = paddle.zeros([num_channels], "float64")

    def __call__(self, layer: Any, inputs: Tuple[Any, ...], output: Any) -> Any:
        """A hook behind the layer: takes the batch's moments, and normalises the batch by them."""
        x = inputs[0]
        channels = 1 if layer._data_format[1] == "C" else x.ndim - 1
        axes = [axis for axis in range(x.ndim) if axis != channels]
        values = x.astype(layer._mean.dtype)  # wide enough where x has 16 bits
        mean = values.mean(axes, keepdim=True)
        variance = (values - mean).square().mean(axes)
        mean = mean.flatten()
        self._add(math.prod(x.shape[axis] for axis in axes), mean, variance)
        return F.batch_norm(
            x,
            mean,
            variance,
            weight=layer.weight,
            bias=layer.bias,
            epsilon=layer._epsilon,
            data_format=layer._data_format,
        )

    def _add(self, count: int, mean: Any, variance: Any) -> None:
        # sums of squares in float32 would cancel; deviations from the means so far do not
        total = self.count + count
        step = mean.astype("float64") - self.mean
        self.squares += variance.astype("float64") * count + step.square() * (self.count * count / total)
        self.mean += step * (count / total)
        self.count = total


@contextlib.contextmanager
def _moments(model: Any) -> Iterator[Mapping[str, _Moments]]:
    """Collects the moments of every batch norm that is trained."""
    layers = {
        name: layer
        for name, layer in model.named_sublayers()
        if isinstance(layer, (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D)) and not layer._use_global_stats
    }
    moments = {name: _Moments(layer._mean.shape[0]) for name, layer in layers.items()}
    hooks = [layer.register_forward_post_hook(moments[name]) for name, layer in layers.items()]
    try:
        yield moments
    finally:
        for hook in hooks:
            hook.remove()


def _of_all_ranks(moments: Mapping[str, _Moments], distribution: Distribution) -> Statistics:
    each = list(moments.values())
    if not each:
        return {}

    def summed(tensors: List[Any]) -> List[Any]:
        """Sums over ranks, in one message."""
        together = distribution.all_sum(paddle.concat(tensors).numpy())
        return paddle.split(paddle.to_tensor(together), [tensor.shape[0] for tensor in tensors])

    counts = summed([paddle.full([1], one.count, "float64") for one in each])
    if not any(count.item() for count in counts):
        raise BadSampleShareError("no clip of the batches for precise BN decodes: there are no statistics")
    sums = summed([one.mean * one.count for one in each])
    means = [total / count for total, count in zip(sums, counts)]
    squares = summed([one.squares + (one.mean - mean).square() * one.count for one, mean in zip(each, means)])
    return {
        name: (mean, square / count)
        for name, mean, square, count in zip(moments, means, squares, counts)
        if count.item()
    }
