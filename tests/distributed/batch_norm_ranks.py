"""What each rank of `test_sync_batch_norm` does, on GPUs too: `python batch_norm_ranks.py FOLDER`."""

from __future__ import annotations

import sys

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import BatchNormSplits, Callback
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling.layers import batch_norm
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D, SubBatchNorm3D, set_sync_group
from paddlevideo_fast.schedule.phases import Phase
from tests.support.fused_norm import operator_over
from tests.support.small_runs import Batches, Classifier, batch_of

MOMENTUM, EPSILON, CHANNELS = 0.75, 2.0**-10, 3  # exact in float32
LAYERS = {
    "2d": (SubBatchNorm2D, "NCHW", (5, 4)),
    "2d nhwc": (SubBatchNorm2D, "NHWC", (5, 4)),
    "3d": (SubBatchNorm3D, "NCDHW", (2, 5, 4)),
    "3d ndhwc": (SubBatchNorm3D, "NDHWC", (2, 5, 4)),
}
# dtype and mean of the values
VALUES = {"float64": ("float64", 0.5), "float32": ("float32", 0.5), "far": ("float32", 1000.0),
          "bfloat16": ("bfloat16", 0.5)}  # fmt: skip
BATCHES = [5, 2, 1, 4]  # of the ranks
EQUAL_BATCHES = [4, 4]
GROUPS = {"pairs": [[0, 1], [2, 3]], "three": [[0, 1, 2]], "four": [[0, 1, 2, 3]]}
NUM_STEPS = 10
PHASES = [Phase(0, 1, bn_sync_devices=2), Phase(1, 2, bn_splits=2), Phase(2, 3, bn_sync_devices=4)]


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values that a tensor of this dtype holds."""
    return paddle.to_tensor(array).astype(dtype).astype("float64").numpy()


def drawn(kind: str, values: str, batches: list) -> tuple:
    """Input and gradient of each rank, channels last, in float64, and what the layer starts with."""
    dtype, mean = VALUES[values]
    rng = np.random.default_rng(len(kind))
    shapes = [(batch, *LAYERS[kind][2], CHANNELS) for batch in batches]
    inputs = [rounded(rng.normal(mean, 2, shape), dtype) for shape in shapes]
    gradients = [rounded(rng.normal(0, 1, shape), dtype) for shape in shapes]
    return inputs, gradients, rng.uniform(0.5, 2, (4, CHANNELS))


def channels_in_place(array: np.ndarray, data_format: str) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if data_format[1] == "C" else array


def layer_results(kind: str, values: str, rank: int, group: object, batches: list = BATCHES) -> dict:
    cls, data_format, _ = LAYERS[kind]
    dtype = VALUES[values][0]
    inputs, gradients, start = drawn(kind, values, batches)
    paddle.set_default_dtype("float64" if dtype == "float64" else "float32")
    layer = cls(CHANNELS, momentum=MOMENTUM, epsilon=EPSILON, data_format=data_format)
    for tensor, array in zip((layer.weight, layer.bias, layer._mean, layer._variance), start):
        tensor.set_value(array.astype(tensor.numpy().dtype))
    paddle.set_default_dtype("float32")
    set_sync_group(paddle.nn.Sequential(layer), group)
    x = paddle.to_tensor(channels_in_place(inputs[rank], data_format)).astype(dtype)
    x.stop_gradient = False
    with paddle.amp.auto_cast(enable=dtype == "bfloat16", level="O1", dtype="bfloat16"):
        output = layer(x)
    output.backward(paddle.to_tensor(channels_in_place(gradients[rank], data_format)).astype(output.dtype))
    assert output.dtype == x.grad.dtype == x.dtype
    found = {"output": output, "inward": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad,
             "mean": layer._mean, "variance": layer._variance}  # fmt: skip
    return {f"{kind}/{values}/{name}": tensor.astype("float64").numpy() for name, tensor in found.items()}


class Net(Classifier):
    """A 3D network with one batch norm whose weights are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv3D(3, 8, 3, bias_attr=False)
        self.norm = SubBatchNorm3D(8)
        self.second = paddle.nn.Conv3D(8, 8, 3, bias_attr=False)
        self.frozen = SubBatchNorm3D(8)
        self.frozen.weight.stop_gradient = self.frozen.bias.stop_gradient = True
        self.fc = paddle.nn.Linear(8, 5)

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        features = paddle.nn.functional.relu(self.norm(self.conv(clips)))
        features = paddle.nn.functional.relu(self.frozen(self.second(features)))
        return self.fc(features.mean([2, 3, 4]))


def loader_of(rank: int, world_size: int) -> Batches:
    """Random clips: 12 a step, of which each rank has as many as `BATCHES` says."""
    ends = np.cumsum(BATCHES) if world_size > 1 else [sum(BATCHES)]
    own = np.arange(0 if rank == 0 else ends[rank - 1], ends[rank])

    def batches(epoch: int) -> list[Batch]:
        rng = np.random.default_rng(epoch)
        shape = (sum(BATCHES), 3, 6, 8, 8)
        steps = [
            (rng.normal(1, 3, shape).astype("float32"), rng.integers(0, 5, shape[0]))
            for _ in range(NUM_STEPS)
        ]
        return [batch_of(clips[own], labels[own], own) for clips, labels in steps]

    return Batches(batches)


def trained(distribution: Distribution, phases: list, callbacks: tuple = ()) -> Net:
    paddle.seed(11)
    model = Net()
    parameters = [each for each in model.parameters() if not each.stop_gradient]
    loader = loader_of(distribution.rank, distribution.world_size)
    Trainer(
        model, paddle.optimizer.Momentum(0.1, parameters=parameters), lambda phase: loader, paddle.to_tensor,
        phases, [BatchNormSplits(model), *callbacks], distribution=distribution,
    ).fit()  # fmt: skip
    return model


class Statistics(Callback):
    """Keeps the running statistics at the end of each epoch, before and after the ranks take their mean."""

    def __init__(self, results: dict) -> None:
        self.results = results

    def epoch_end(self, trainer: Trainer) -> None:
        norm = trainer.model.norm
        name = f"phases/{trainer.state.epoch}"
        tensors = norm.split_statistics() if norm.num_splits > 1 else (norm._mean, norm._variance)
        self.results[f"{name}/own"] = np.stack([tensor.numpy() for tensor in tensors])
        for callback in trainer.callbacks:
            callback.before_checkpoint(trainer)
        tensors = norm.split_statistics() if norm.num_splits > 1 else (norm._mean, norm._variance)
        self.results[f"{name}/shared"] = np.stack([tensor.numpy() for tensor in tensors])
        self.results[f"{name}/whole"] = np.stack([norm._mean.numpy(), norm._variance.numpy()])


def of_two_ranks(rank: int, group: object) -> dict:
    """Results by Paddle's operator and by ours; on CPUs by a stand-in of the operator.

    "alone" and "shares" are what the trial says of an operator without a communicator, and of this one.
    """
    results, operators = {"alone": False}, paddle._C_ops
    model = paddle.nn.Sequential(SubBatchNorm2D(CHANNELS))
    if gpu_number(paddle.get_device()) is None:
        batch_norm.compute_capability = lambda: 80
        operators.sync_batch_norm_ = operator_over(lambda values: values)
        set_sync_group(model, group)
        results["alone"] = model[0]._is_fused
        operators.sync_batch_norm_ = operator_over(group.all_sum)
    set_sync_group(model, group)
    results["shares"] = model[0]._is_fused
    for way, is_everyone in {"fused": True, "own": False}.items():
        group.is_everyone = is_everyone
        for kind in LAYERS:
            for values in ("float32", "bfloat16"):
                found = layer_results(kind, values, rank, group, EQUAL_BATCHES)
                results.update({f"{way}/{key}": value for key, value in found.items()})
    return results


def deviation(found: dict, values: str) -> float:
    """How far the results of `of_two_ranks` by Paddle's operator are from ours, relatively."""
    keys = [key.removeprefix("own/") for key in found if key.startswith("own/") and values in key]
    assert len(keys) == 6 * len(LAYERS)
    pairs = [(found[f"fused/{key}"], found[f"own/{key}"]) for key in keys]
    return max(float(np.abs(fused - own).max() / np.abs(own).max()) for fused, own in pairs)


def main(folder: str) -> None:
    distribution = FleetDistribution()
    rank = distribution.rank
    if distribution.world_size == 2:
        np.savez(f"{folder}/2_{rank}.npz", **of_two_ranks(rank, distribution.rank_group(2)))
        return
    results = {}
    for name, num_ranks in {3: {"three": 3}, 4: {"pairs": 2, "four": 4}}[distribution.world_size].items():
        for kind in LAYERS:
            for values in VALUES:
                found = layer_results(kind, values, rank, distribution.rank_group(num_ranks))
                results.update({f"{name}/{key}": value for key, value in found.items()})
    if distribution.world_size == 4:
        model = trained(distribution, [Phase(0, 1, bn_sync_devices=4)])
        results.update({f"net/{name}": tensor.numpy() for name, tensor in model.state_dict().items()})
        trained(distribution, PHASES, (Statistics(results),))
    np.savez(f"{folder}/{distribution.world_size}_{rank}.npz", **results)


if __name__ == "__main__":
    main(sys.argv[1])
