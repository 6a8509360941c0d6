"""Batch norm whose statistics come from parts of a batch, or from the batches of several processes."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.device import compute_capability
from paddlevideo_fast.modeling.layers.operators import is_traced

BATCH_NORMS = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D)


class _Normalized(PyLayer):
    """Normalises by statistics that depend on `x`. With n values of a channel in the group,

        dx = weight / σ · (g − Σ g / n − x̂ · Σ (g · x̂) / n),  x̂ = (x − mean) / σ,

    where the sums go over the group; this process's shares of them are the gradients of bias and weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: paddle.Tensor,
        weight: paddle.Tensor,
        bias: paddle.Tensor,
        mean: paddle.Tensor,
        variance: paddle.Tensor,
        count: paddle.Tensor,
        norm: Any,
    ) -> paddle.Tensor:
        ctx.save_for_backward(x, weight, bias, mean, variance, count)
        ctx.group, ctx.counts = norm._group, norm._counts
        # known here alone: what `saved_tensor` gives may be copies, as with RUNTIME.recompute
        ctx.has_gradient = [not each.stop_gradient for each in (x, weight, bias)]
        ctx.options = norm._options
        return _batch_norm(_in_kernel_type(x), mean, variance, weight, bias, **ctx.options).astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, variance, count = ctx.saved_tensor()
        kernel_x = _in_kernel_type(x)
        with paddle.enable_grad():
            leaves = [_leaf(each) for each in (kernel_x, weight, bias)]
            output = _batch_norm(leaves[0], mean, variance, *leaves[1:], **ctx.options)
        direct, of_weight, of_bias = paddle.grad(output, leaves, _in_kernel_type(gradient))
        sums = ctx.group.all_sum(paddle.concat([of_weight, of_bias]).astype("float64"))
        scale = weight * paddle.rsqrt(variance + ctx.options["epsilon"])
        slope, offset = ((part / count).astype(weight.dtype) * -scale for part in paddle.split(sums, 2))
        # slope · x̂ + offset is what the statistics pass on, and a batch norm itself
        passed_on = _batch_norm(kernel_x, mean, variance, slope, offset, **ctx.options)
        of_x = direct + passed_on if ctx.counts else direct
        gradients = of_x.astype(x.dtype), of_weight, of_bias
        wanted = (each if has else None for each, has in zip(gradients, ctx.has_gradient))
        return (*wanted, None, None, None)


def _leaf(x: paddle.Tensor) -> paddle.Tensor:
    """A tensor of the same values that starts a new graph."""
    detached = x.detach()
    detached.stop_gradient = False
    return detached


def _wide(x: paddle.Tensor) -> paddle.Tensor:
    return x if x.dtype in (paddle.float32, paddle.float64) else x.astype("float32")


def _in_kernel_type(x: paddle.Tensor) -> paddle.Tensor:
    """What Paddle's batch norm takes: on a CPU it has no kernel for 16 bits, and elsewhere it sums in 32."""
    return _wide(x) if x.place.is_cpu_place() else x


def _batch_norm(x: paddle.Tensor, *tensors: paddle.Tensor, **options: Any) -> paddle.Tensor:
    """`F.batch_norm`, whose gradient by given statistics mixes channels of [N, C, T, H, W] up on a GPU.

    Paddle's kernel leaves the last axis out there (2.6, and 3 as far as we know). So it gets four axes.
    """
    if x.ndim < 5 or options["data_format"][1] != "C" or not compute_capability() or is_traced():
        return F.batch_norm(x, *tensors, **options)
    return F.batch_norm(x.flatten(3), *tensors, **options).reshape(x.shape)


def _fused_norm(
    x: paddle.Tensor, tensors: Iterable[paddle.Tensor], momentum: float, epsilon: float, data_format: str
) -> paddle.Tensor:
    """Paddle's operator over all processes. `tensors`: running mean and variance, weight, bias.

    It updates the first two in place, and would make them take a gradient. Paddle 2.6 fails where `x` takes
    none.
    """
    x = _leaf(x) if x.stop_gradient else x
    mean, variance, *affine = tensors
    layout = "NCHW" if data_format[1] == "C" else "NHWC"  # its names of five axes mean the second
    options = (False, momentum, epsilon, layout, False, False)  # in training, by the statistics of the batch
    return paddle._C_ops.sync_batch_norm_(x, mean.detach(), variance.detach(), *affine, *options)[0]


@paddle.no_grad()
def _operator_shares(group: Any) -> bool:
    """Whether Paddle's operator takes its statistics from the processes of the group, which all call this.

    Where Paddle has not given the device a communicator, it takes those of this process and says nothing.
    No function of Paddle shows this, so it is tried.
    """
    if not compute_capability() or not group.is_everyone:
        return False
    group.all_sum(paddle.ones([1]))  # Paddle 2.6 connects the processes at their first message
    x, mean = paddle.full([1, 1, 1, 1], float(group.rank == 0)), paddle.zeros([1])
    _fused_norm(x, (mean, *(paddle.ones([1]) for _ in range(3))), 0.0, 1e-5, "NCHW")
    return 0 < mean.item() < 1  # the mean over processes, of which one has 1 and the others have 0


def _moments_of_group(x: Any, data_format: str, group: Any, counts: bool) -> tuple[Any, Any, Any]:
    """Number of values of a channel [1], their mean and their variance [C], in all processes of the group."""
    channel_axis = 1 if data_format[1] == "C" else x.ndim - 1
    axes = [axis for axis in range(x.ndim) if axis != channel_axis]
    mean = x.mean(axes)
    # centred first: the mean of squares less the square of the mean would cancel in float32
    ones, zeros = paddle.ones_like(mean), paddle.zeros_like(mean)
    centred = F.batch_norm(x, mean, 0.75 * ones, ones, zeros, epsilon=0.25, data_format=data_format)
    squares = centred.square().mean(axes).astype("float64") + mean.astype("float64").square()
    own = paddle.concat([paddle.ones([1], "float64"), mean.astype("float64"), squares])
    sums = group.all_sum(own * (x.size // mean.size if counts else 0))
    count, of_values, of_squares = paddle.split(sums, [1, mean.size, mean.size])
    whole = of_values / count.clip(min=1.0)
    variance = (of_squares / count.clip(min=1.0) - whole.square()).clip(min=0.0)
    return count, whole.astype(mean.dtype), variance.astype(mean.dtype)


class SubBatchNorm(nn.Layer):
    """What `SubBatchNorm2D` and `SubBatchNorm3D` add to Paddle's layers.

    In training with n splits, the batch is cut into n consecutive parts of equal size, as if n devices shared
    it. Each part is normalised by its own mean and variance and updates the running statistics of its split;
    weight and bias are shared. `_mean` and `_variance`, which evaluation uses and weight files hold, are the
    statistics of all splits together:

        mean = E[mean_i],  variance = E[variance_i] + Var[mean_i]

    They are computed when they are needed, not after every step: when training ends (`eval`), for
    `state_dict`, and before the number of splits changes. Who reads the two tensors directly calls
    `aggregate_splits` first.

    Where n does not divide the batch, the first parts are longer by one sample. Where the batch is smaller
    than n, each sample is a part and the last splits keep their statistics.

    With one split, several processes may share the statistics of their batches; see `set_group`.
    With one split and one process, and where the running statistics normalise in training too, this is
    Paddle's layer.

    Reference: Wu et al., "A Multigrid Method for Efficiently Training Video Models", arXiv 1912.00998.
    """

    _splits: tuple[tuple[paddle.Tensor, paddle.Tensor], ...] = ()
    _group: Any | None = None
    _is_fused = False
    _counts = True
    _is_behind = False  # the splits have moved on since `_mean` and `_variance` were computed
    _follows = False  # `state_dict` computes them

    _is_training = True

    @property
    def training(self) -> bool:
        """Whether it normalises by the statistics of the batch."""
        return self._is_training

    @training.setter
    def training(self, is_training: bool) -> None:
        self._is_training = is_training
        if not is_training:
            self.aggregate()  # not in `forward`, which an export traces

    @property
    def num_splits(self) -> int:
        """How many parts a training batch is cut into."""
        return max(len(self._splits), 1)

    def set_num_splits(self, num_splits: int) -> None:
        """Changes the number of splits. Each split starts with the statistics of all splits together.

        Raises:
            ValueError: `num_splits` is below one.
        """
        if num_splits < 1:
            raise ValueError(f"num_splits is {num_splits}, expected 1 or more")
        self.aggregate()
        if num_splits > 1 and not self._follows:
            self.register_state_dict_hook(self._before_reading)
            self._follows = True
        count = num_splits if num_splits > 1 else 0
        self._splits = tuple(
            (self._mean.detach().clone(), self._variance.detach().clone()) for _ in range(count)
        )

    def set_group(self, group: Any | None, is_fused: bool = False) -> None:
        """Lets the processes of `group` share the statistics of a training batch; None: no process does.

        Args:
            group: its `all_sum(tensor)` gives the sum of a tensor [M] over the processes.
            is_fused: Paddle's operator shares them; see `_synchronized`.

        Raises:
            ValueError: there are several splits.
        """
        if group is not None and self._splits:
            raise ValueError(f"{len(self._splits)} splits of a batch cannot be shared between processes")
        self._group, self._is_fused = group, is_fused

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """A tensor of the same shape and dtype; the batch is the first axis."""
        alone = self._group is None and not self._splits
        if alone or not self.training or self._use_global_stats:
            return self._normalized(x, self._mean, self._variance)
        if self._group is not None:
            return self._synchronized(x)
        parts = _cut(x, len(self._splits))
        parts = [self._normalized(part, *statistics) for part, statistics in zip(parts, self._splits)]
        self._is_behind = True
        return paddle.concat(parts)

    def _normalized(self, x: paddle.Tensor, mean: paddle.Tensor, variance: paddle.Tensor) -> paddle.Tensor:
        # What Paddle's `forward` does. Its export knows no `super()` between two `forward`s.
        tensors = mean, variance, *self._affine()
        mode = {"training": self.training, "use_global_stats": self._use_global_stats}
        return _batch_norm(x, *tensors, **mode, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"momentum": self._momentum, "epsilon": self._epsilon, "data_format": self._data_format}

    def _affine(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Weight and bias as the kernel takes them.

        Paddle's batch norm gives neither of them a gradient where one is frozen. A copy that takes a gradient
        stands for the frozen one, and nobody reads that gradient.
        """
        weight, bias = self.weight, self.bias
        if self.training and weight.stop_gradient != bias.stop_gradient:
            return (_leaf(weight), bias) if weight.stop_gradient else (weight, _leaf(bias))
        return weight, bias

    def _synchronized(self, x: paddle.Tensor) -> paddle.Tensor:
        """Batch norm in training over the batches of all processes of the group, whose sizes may differ.

        The gradient belongs to the sum of the processes' losses, as data-parallel training expects. All
        processes of the group must call it, and back-propagate through it. 16-bit values are summed in
        float32. The running variance is that of the population.

        There are two ways. Ours runs on any device, for any group: Paddle's batch norm with given statistics,
        one message of 2C + 1 numbers forward and one message of 2C numbers backward. A process whose `x` does
        not count (see `without_clips`) only takes part in the messages.

        With `is_fused` it is one operator of Paddle, which reads and writes the values half as often. It
        gives each process the same weight, whatever its clips. See docs/adr/0019.

        Reference: Ioffe and Szegedy, "Batch Normalization", arXiv 1502.03167, section 3.
        """
        if self._is_fused and paddle.in_dynamic_mode():
            return _fused_norm(x, (self._mean, self._variance, *self._affine()), **self._options)
        with paddle.amp.auto_cast(enable=False):
            with paddle.no_grad():
                given = _wide(x.detach())
                count, mean, variance = _moments_of_group(given, self._data_format, self._group, self._counts)
                for running, new in ((self._mean, mean), (self._variance, variance)):
                    updated = running * self._momentum + new * (1 - self._momentum)
                    # only a group to which this process adds nothing may have no values at all
                    new_running = updated if self._counts else paddle.where(count > 0, updated, running)
                    paddle.assign(new_running, running)
                count = count.clip(min=1.0)
            return _Normalized.apply(x, self.weight, self.bias, mean, variance, count, self)

    def split_statistics(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Running means and variances of the splits, each [num_splits, C]."""
        means, variances = zip(*self._splits)
        return paddle.stack(means), paddle.stack(variances)

    def set_split_statistics(self, means: np.ndarray, variances: np.ndarray) -> None:
        """Sets the statistics that `split_statistics` gave; `_mean` and `_variance` follow."""
        for own, values in zip(self._splits, zip(means, variances)):
            for tensor, value in zip(own, values):
                tensor.set_value(value)
        self._is_behind = not self._use_global_stats
        self.aggregate()

    def _before_reading(self, state: Mapping[str, Any]) -> None:
        self.aggregate()  # the state holds the tensors themselves

    @paddle.no_grad()
    def aggregate(self) -> None:
        """Computes `_mean` and `_variance`, if the splits have moved on since they were computed."""
        if not self._is_behind:
            return  # the mean of equal numbers may differ from them in the last bit
        self._is_behind = False
        with paddle.amp.auto_cast(enable=False):
            means, variances = self.split_statistics()
            mean = means.mean(0)
            paddle.assign(variances.mean(0) + (means - mean).square().mean(0), self._variance)
            paddle.assign(mean, self._mean)


class SubBatchNorm2D(SubBatchNorm, nn.BatchNorm2D):
    """Paddle's `BatchNorm2D` whose batch can be cut into splits; see `SubBatchNorm`."""


class SubBatchNorm3D(SubBatchNorm, nn.BatchNorm3D):
    """Paddle's `BatchNorm3D` whose batch can be cut into splits; see `SubBatchNorm`."""


def sub_batch_norms(model: nn.Layer) -> Iterator[tuple[str, SubBatchNorm]]:
    """The batch norms of a model, with their structured names."""
    for name, layer in model.named_sublayers():
        if isinstance(layer, SubBatchNorm):
            yield name, layer


def set_num_splits(model: nn.Layer, num_splits: int) -> None:
    """Changes the number of splits of a model's batch norms in place.

    Parameters, their names and the weight file stay the same. Layers with the right number do not change.

    Raises:
        ValueError: `num_splits` is below one.
    """
    for _, layer in sub_batch_norms(model):
        if layer.num_splits != num_splits:
            layer.set_num_splits(num_splits)


def set_sync_group(model: nn.Layer, group: Any | None) -> None:
    """Lets the batch norms of a model share their statistics over the processes of a group; None: no longer.

    Parameters, their names and the weight file stay the same. Paddle's operator is used on GPUs whose group
    `is_everyone`, if a trial shows that it shares; the host waits for the trial.

    Args:
        model: the same on each process of the group, all of which call this.
        group: see `SubBatchNorm.set_group`.

    Raises:
        ValueError: the batch norms have several splits.
    """
    is_fused = group is not None and _operator_shares(group)
    for _, layer in sub_batch_norms(model):
        layer.set_group(group, is_fused)


@contextlib.contextmanager
def without_clips(model: nn.Layer) -> Iterator[None]:
    """Context in which a forward pass in training leaves no trace in the statistics of batch norms.

    Batch norms that share statistics take part in the messages, as their group waits for them; Paddle's
    operator counts the batch, too. The others normalise by their running statistics.
    """
    norms = (nn.BatchNorm, *BATCH_NORMS)
    layers = [layer for layer in model.sublayers() if isinstance(layer, norms) and layer.training]
    try:
        for layer in layers:
            if getattr(layer, "_group", None) is not None:
                layer._counts = False
            else:
                layer.training = False
        yield
    finally:
        for layer in layers:
            layer.training = True
            vars(layer).pop("_counts", None)


def aggregate_splits(model: nn.Layer) -> None:
    """Brings `_mean` and `_variance` of a model's batch norms up to date with its splits."""
    for _, layer in sub_batch_norms(model):
        layer.aggregate()


def restart_splits(model: nn.Layer) -> None:
    """Restarts every split from `_mean` and `_variance`, after precise BN has set these."""
    for _, layer in sub_batch_norms(model):
        layer.set_num_splits(layer.num_splits)


def split_statistics(model: nn.Layer) -> dict[str, paddle.Tensor]:
    """Running statistics [num_splits, C] of all splits of a model, by the names of `_mean` and `_variance`.

    A resumed training needs them to go on exactly; a weight file only has the statistics of all splits
    together. Empty where there is one split.
    """
    return {
        f"{name}.{kind}": tensor
        for name, layer in sub_batch_norms(model)
        if layer.num_splits > 1
        for kind, tensor in zip(("_mean", "_variance"), layer.split_statistics())
    }


def set_split_statistics(model: nn.Layer, statistics: Mapping[str, np.ndarray]) -> None:
    """Sets the arrays that `split_statistics` gave for a model with as many splits."""
    for name, layer in sub_batch_norms(model):
        if layer.num_splits > 1:
            layer.set_split_statistics(statistics[f"{name}._mean"], statistics[f"{name}._variance"])


class RunningStatistics:
    """The running statistics that a forward pass of a layer changes, as they are now."""

    @paddle.no_grad()
    def __init__(self, layer: nn.Layer) -> None:
        norms = [each for each in layer.sublayers(include_self=True) if isinstance(each, BATCH_NORMS)]
        norms = [norm for norm in norms if norm.training and not norm._use_global_stats]
        pairs = [((norm._mean, norm._variance), *getattr(norm, "_splits", ())) for norm in norms]
        self._behind = [(norm, norm._is_behind) for norm in norms if isinstance(norm, SubBatchNorm)]
        self._tensors = [tensor for of_norm in pairs for pair in of_norm for tensor in pair]
        self._values = paddle.concat(self._tensors) if self._tensors else None

    @paddle.no_grad()
    def put_back(self) -> None:
        """Undoes what has changed since."""
        for norm, was_behind in self._behind:
            norm._is_behind = was_behind
        if self._values is not None:
            values = paddle.split(self._values, [tensor.size for tensor in self._tensors])
            for tensor, value in zip(self._tensors, values):
                paddle.assign(value, tensor)


@contextlib.contextmanager
def kept_statistics(layer: nn.Layer) -> Iterator[None]:
    """Context in which forward passes of a layer leave the running statistics of its batch norms alone."""
    statistics = RunningStatistics(layer)
    try:
        yield
    finally:
        statistics.put_back()


def _cut(x: paddle.Tensor, num_splits: int) -> list[paddle.Tensor]:
    num_parts = min(num_splits, x.shape[0])
    size, longer = divmod(x.shape[0], num_parts)
    return paddle.split(x, [size + 1] * longer + [size] * (num_parts - longer))
