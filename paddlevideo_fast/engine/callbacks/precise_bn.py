"""Precise batch norm: statistics of the training data in place of running averages, which lag behind."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.engine.callbacks.ema import Ema
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.evaluator import Evaluator
from paddlevideo_fast.engine.extension import Extension
from paddlevideo_fast.engine.protocols import VideoModel
from paddlevideo_fast.engine.trainer import Callback, Trainer
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.modeling.contexts import hooked
from paddlevideo_fast.modeling.layers.batch_norm import BATCH_NORMS, aggregate_splits, restart_splits
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup

Statistics = dict[str, tuple[paddle.Tensor, paddle.Tensor]]


def population_statistics(
    evaluator: Evaluator, model: VideoModel, epoch: int = 0, check_stop: Callable[[], None] | None = None
) -> Statistics:
    """Mean and variance of the inputs of each batch norm, over all batches and ranks. Changes nothing.

    Every batch is normalised by its own statistics, as in training, but without splits and without dropout.
    The variance is the variance of the population, E[x²] − E[x]², not the mean of the batches' variances. A
    batch has the weight of its number of values. Batch norms that training does not update are left out.

    Args:
        evaluator: over clips as the trained model will meet them. The statistics are float32 with every
            precision.
        model: its train or eval mode is the same afterwards.
        epoch: of the evaluator's loader.
        check_stop: called before each batch; what it raises ends the pass.

    Returns:
        (mean, variance), each float64 [C], by the structured names of the batch norms.

    Raises:
        BadSampleShareError: no clip decodes.

    Reference: Wu and Johnson, "Rethinking 'Batch' in BatchNorm", arXiv 2105.07576, section 3.
    """
    with paddle.no_grad(), _moments(model) as moments:
        evaluator.visit(model, lambda batch, outputs: None, "precise BN", epoch, check_stop)
        return _of_all_ranks(moments, evaluator.distribution)


def put_statistics(model: VideoModel, statistics: Statistics) -> Statistics:
    """Sets the running statistics of the named batch norms, and returns the statistics they had before."""
    aggregate_splits(model)
    layers = dict(model.named_sublayers())
    earlier = {}
    with paddle.no_grad():
        for name, (mean, variance) in statistics.items():
            layer = layers[name]
            earlier[name] = layer._mean.clone(), layer._variance.clone()
            paddle.assign(mean.astype(layer._mean.dtype), layer._mean)
            paddle.assign(variance.astype(layer._variance.dtype), layer._variance)
    return earlier


@EXTENSIONS.register("PRECISEBN")
@dataclass(frozen=True)
class PreciseBN(Extension):
    """Batch-norm statistics of the training data as a whole.

    Args:
        preciseBN_interval: epochs between two measurements; the last epoch is always followed by one.
        num_iters_preciseBN: batches of one measurement; at most the training data once.
    """

    preciseBN_interval: PositiveInt = 5
    num_iters_preciseBN: PositiveInt = 200

    excludes = {"to_static": "PRECISEBN looks into the network, which is hidden then; keep one of the two"}

    def callbacks(self, setup: "TrainingSetup") -> Iterable[Callback]:
        evaluator = setup.statistics_evaluator(self.num_iters_preciseBN)
        averaged = setup.spec.extension(Ema) is not None
        yield PreciseBatchNorm(evaluator, self.preciseBN_interval, averaged)


@dataclass(eq=False)
class PreciseBatchNorm(Callback):
    """Replaces running statistics of batch norms by population statistics, before evaluation and checkpoint.

    Args:
        evaluator: over the training data.
        interval: in epochs; the last epoch always counts.
        averaged: evaluation uses averaged weights, for which the statistics are measured once more.
    """

    evaluator: Evaluator
    interval: int
    averaged: bool = False
    _trained: Statistics = field(default_factory=dict, init=False)

    def epoch_end(self, trainer: Trainer) -> None:
        if self._is_due(trainer):
            put_statistics(trainer.model, self._measure(trainer))
            restart_splits(trainer.model)

    def before_evaluation(self, trainer: Trainer) -> None:
        if self.averaged and self._is_due(trainer):
            self._trained = put_statistics(trainer.model, self._measure(trainer))

    def after_evaluation(self, trainer: Trainer) -> None:
        put_statistics(trainer.model, self._trained)
        self._trained = {}

    def _is_due(self, trainer: Trainer) -> bool:
        return trainer.state.epoch % self.interval == 0 or trainer.state.epoch == trainer.num_epochs

    def _measure(self, trainer: Trainer) -> Statistics:
        with contextlib.closing(self.evaluator.loader):  # its workers end with each pass
            return population_statistics(
                self.evaluator, trainer.model, trainer.state.epoch, trainer.interrupt.raise_if_requested
            )


class _Moments:
    """Number of values, mean and sum of squared deviations of each channel, over the batches of a layer."""

    def __init__(self, num_channels: int) -> None:
        self.count = 0
        self.mean = paddle.zeros([num_channels], "float64")
        self.squares = paddle.zeros([num_channels], "float64")

    def __call__(
        self, layer: nn.Layer, inputs: tuple[paddle.Tensor, ...], output: paddle.Tensor
    ) -> paddle.Tensor:
        """Runs after the layer's forward: adds the batch's moments, and normalises the batch by them."""
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

    def _add(self, count: int, mean: paddle.Tensor, variance: paddle.Tensor) -> None:
        # sums of squares would cancel; deviations from the mean so far do not (Chan et al., 1979)
        total = self.count + count
        step = mean.astype("float64") - self.mean
        self.squares += variance.astype("float64") * count + step.square() * (self.count * count / total)
        self.mean += step * (count / total)
        self.count = total


@contextlib.contextmanager
def _moments(model: VideoModel) -> Iterator[Mapping[str, _Moments]]:
    """Context that collects the moments of every batch norm that is trained, by the layer's name."""
    layers = {
        name: layer
        for name, layer in model.named_sublayers()
        if isinstance(layer, BATCH_NORMS) and not layer._use_global_stats
    }
    moments = {name: _Moments(layer._mean.shape[0]) for name, layer in layers.items()}
    hooks = [layer.register_forward_post_hook(moments[name]) for name, layer in layers.items()]
    with hooked(hooks):
        yield moments


def _of_all_ranks(moments: Mapping[str, _Moments], distribution: Distribution) -> Statistics:
    each = list(moments.values())
    if not each:
        return {}

    def summed(tensors: list[paddle.Tensor]) -> list[paddle.Tensor]:
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
