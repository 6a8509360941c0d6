"""Batch norm whose statistics come from parts of the batch, as if each part were a batch of its own."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.modeling.layers.sync_batch_norm import sync_batch_norm


class SubBatchNorm(nn.Layer):
    """What `SubBatchNorm2D` and `SubBatchNorm3D` add to Paddle's layers.

    In training with n splits, the batch is cut into n consecutive parts of one size, as if n devices shared
    it. Each is normalised by its own mean and variance and updates the running statistics of its split;
    weight and bias are shared. `_mean` and `_variance`, which evaluation uses and weight files hold,
    are those of all splits together after every step:

        mean = E[mean_i],  variance = E[variance_i] + Var[mean_i]

    Where n does not divide the batch, the first parts are longer by one sample. Where the batch is smaller
    than n, each sample is a part and the last splits keep their statistics.

    With one split, the statistics may be those of the batches of several processes; see `sync_batch_norm`.

    With neither, and where the running statistics normalise in training too, this is Paddle's layer.

    Reference: Wu et al., "A Multigrid Method for Efficiently Training Video Models", arXiv 1912.00998.
    """

    _splits: Tuple[Tuple[paddle.Tensor, paddle.Tensor], ...] = ()
    _group: Optional[Any] = None
    _native: Tuple[
        nn.SyncBatchNorm, ...
    ] = ()  # a tuple, since a layer here would change the names of weights

    @property
    def num_splits(self) -> int:
        """Parts that a training batch is cut into."""
        return max(len(self._splits), 1)

    def set_num_splits(self, num_splits: int) -> None:
        """From now on there are so many splits; each starts with the statistics of all together.

        Raises:
            ValueError: fewer than one.
        """
        if num_splits < 1:
            raise ValueError(f"num_splits is {num_splits}, expected 1 or more")
        count = num_splits if num_splits > 1 else 0
        self._splits = tuple(
            (self._mean.detach().clone(), self._variance.detach().clone()) for _ in range(count)
        )

    def set_group(self, group: Optional[Any]) -> None:
        """From now on the processes of `group` share the statistics of a training batch; None: none do.

        On GPUs, where these are all processes, that is Paddle's `SyncBatchNorm` on the same tensors.

        Raises:
            ValueError: there are several splits.
        """
        if group is not None and self._splits:
            raise ValueError(f"{len(self._splits)} splits of a batch cannot be shared between processes")
        self._group = group
        on_gpu = paddle.device.get_device().startswith("gpu")
        is_native = group is not None and group.is_everyone and on_gpu
        self._native = (nn.SyncBatchNorm.convert_sync_batchnorm(self),) if is_native else ()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """A tensor of the same shape and dtype; the batch is the first axis."""
        alone = self._group is None and not self._splits
        if alone or not self.training or self._use_global_stats:
            return self._normalized(x, self._mean, self._variance)
        if self._group is not None:
            return self._synchronized(x)
        parts = _cut(x, len(self._splits))
        parts = [self._normalized(part, *statistics) for part, statistics in zip(parts, self._splits)]
        self._aggregate()
        return paddle.concat(parts)

    def _normalized(self, x: paddle.Tensor, mean: paddle.Tensor, variance: paddle.Tensor) -> paddle.Tensor:
        # What Paddle's `forward` does. Its export knows no `super()` between two `forward`s.
        return F.batch_norm(
            x,
            mean,
            variance,
            weight=self.weight,
            bias=self.bias,
            training=self.training,
            momentum=self._momentum,
            epsilon=self._epsilon,
            data_format=self._data_format,
            use_global_stats=self._use_global_stats,
        )

    def _synchronized(self, x: paddle.Tensor) -> paddle.Tensor:
        if self._native:
            return self._native[0](x)
        return sync_batch_norm(
            x,
            self._mean,
            self._variance,
            self.weight,
            self.bias,
            momentum=self._momentum,
            epsilon=self._epsilon,
            data_format=self._data_format,
            group=self._group,
        )

    def split_statistics(self) -> Tuple[paddle.Tensor, paddle.Tensor]:
        """Running means and variances of the splits, each [num_splits, C]."""
        means, variances = zip(*self._splits)
        return paddle.stack(means), paddle.stack(variances)

    def set_split_statistics(self, means: np.ndarray, variances: np.ndarray) -> None:
        """Takes back what `split_statistics` gave; `_mean` and `_variance` follow."""
        for own, values in zip(self._splits, zip(means, variances)):
            for tensor, value in zip(own, values):
                tensor.set_value(value)
        self._aggregate()

    @paddle.no_grad()
    def _aggregate(self) -> None:
        with paddle.amp.auto_cast(enable=False):
            means, variances = self.split_statistics()
            mean = means.mean(0)
            paddle.assign(variances.mean(0) + (means - mean).square().mean(0), self._variance)
            paddle.assign(mean, self._mean)


class SubBatchNorm2D(SubBatchNorm, nn.BatchNorm2D):
    """Paddle's `BatchNorm2D` whose batch can be cut into splits; see `SubBatchNorm`."""


class SubBatchNorm3D(SubBatchNorm, nn.BatchNorm3D):
    """Paddle's `BatchNorm3D` whose batch can be cut into splits; see `SubBatchNorm`."""


def sub_batch_norms(model: nn.Layer) -> Iterator[Tuple[str, SubBatchNorm]]:
    """The layers of a model that can be split, with their structured names."""
    for name, layer in model.named_sublayers():
        if isinstance(layer, SubBatchNorm):
            yield name, layer


def set_num_splits(model: nn.Layer, num_splits: int) -> None:
    """Resizes the batch norms of a model in place; parameters, their names and the weight file stay the same.

    Layers that have so many splits already go on as they are.

    Raises:
        ValueError: fewer than one.
    """
    for _, layer in sub_batch_norms(model):
        if layer.num_splits != num_splits:
            layer.set_num_splits(num_splits)


def set_sync_group(model: nn.Layer, group: Optional[Any]) -> None:
    """Lets the batch norms of a model take their statistics over the processes of a group; None: no more.

    Parameters, their names and the weight file stay the same.

    Args:
        model: on each process of the group the same.
        group: see `sync_batch_norm`; its `is_everyone` says whether these are all processes of the run.

    Raises:
        ValueError: the batch norms have several splits.
    """
    for _, layer in sub_batch_norms(model):
        layer.set_group(group)


def restart_splits(model: nn.Layer) -> None:
    """Every split goes on from `_mean` and `_variance`, which have been set to something better."""
    for _, layer in sub_batch_norms(model):
        layer.set_num_splits(layer.num_splits)


def split_statistics(model: nn.Layer) -> Dict[str, paddle.Tensor]:
    """Running statistics [num_splits, C] of all splits of a model, by the names of `_mean` and `_variance`.

    Training goes on exactly as before only from these; a weight file holds those of all splits together.
    Empty where there is one split.
    """
    return {
        f"{name}.{kind}": tensor
        for name, layer in sub_batch_norms(model)
        if layer.num_splits > 1
        for kind, tensor in zip(("_mean", "_variance"), layer.split_statistics())
    }


def set_split_statistics(model: nn.Layer, statistics: Mapping[str, np.ndarray]) -> None:
    """Takes back, as arrays, what `split_statistics` gave for a model with as many splits."""
    for name, layer in sub_batch_norms(model):
        if layer.num_splits > 1:
            layer.set_split_statistics(statistics[f"{name}._mean"], statistics[f"{name}._variance"])


def _cut(x: paddle.Tensor, num_splits: int) -> List[paddle.Tensor]:
    num_parts = min(num_splits, x.shape[0])
    size, longer = divmod(x.shape[0], num_parts)
    return paddle.split(x, [size + 1] * longer + [size] * (num_parts - longer))
