"""Several processes with a share of the batch each take the steps of one process with all of it.

Also those that freeze, free and recompute parts of the network.
"""

import numpy as np
import pytest

from tests.support.launching import Job, fleet_runs

pytestmark = pytest.mark.annex  # one of the networks is pre-trained

SCRIPT = '''
import sys

import paddlevideo_fast
import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import (
    Distribution, MixedPrecision, Precision, RoundedPrecision, Trainer
)
from paddlevideo_fast.engine.distribution import launched_rank, make_distribution
from paddlevideo_fast.engine.callbacks import BatchNormSplits, ExponentialMovingAverage, Unfreezing
from paddlevideo_fast.errors import DistributionError
from paddlevideo_fast.loader import Batch, ClipBatchSampler
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.modeling.losses import CrossEntropyLoss
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer
from tests.support.gpu_amp import gpu_amp

NUM_STEPS = 10
OPTIMIZER = {
    "name": "Momentum",
    "momentum": 0.9,
    "learning_rate": 0.1,
    "weight_decay": 0.1,
    "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 0.5},
    "lr_multipliers": {"fc": 2.0},
}


class Loader:
    """Random clips, in the order that the sampler of a real run has; a sample has another for each view."""

    def __init__(self, batch_size, rank, world_size, clips_per_video):
        rng = np.random.default_rng(0)
        num = 8 * NUM_STEPS
        self.clips = rng.normal(size=(num, 2, 3, 4, 8, 8)).astype("float32")
        self.labels = rng.integers(0, 5, num)
        self.sampler = ClipBatchSampler(
            num, batch_size, shuffle=True, drop_last=True, seed=3, rank=rank, world_size=world_size,
            clips_per_video=clips_per_video,
        )

    def __len__(self):
        return self.sampler.num_batches

    def epoch(self, epoch, start_batch=0):
        for requests in self.sampler.batches(epoch, start_batch):
            ids, views = np.array([(request.index, request.view) for request in requests]).T
            yield Batch(self.clips[ids, views], self.labels[ids], ids, views)


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv3D(3, 8, 3, bias_attr=False)
        self.norm = SubBatchNorm3D(8)
        self.fc = paddle.nn.Linear(8 * 2 * 6 * 6, 5)
        self.loss = CrossEntropyLoss(class_weights="effective", beta=0.9, logit_adjustment=1.0)
        self.loss.set_class_counts([40, 20, 10, 5, 5])

    def forward(self, clips):
        return self.fc(paddle.tanh(self.norm(self.conv(clips))).flatten(1))


class Plain(Net):
    """Without what ranks share."""

    def __init__(self):
        super().__init__()
        self.norm = paddle.nn.Identity()


def masked():
    """VideoMAE's pre-training of a tiny ViT; each clip has a mask of its own."""
    sizes = {"depth": 1, "num_heads": 2, "patch_size": 4}
    return build_model({
        "framework": "Pretrain",
        "backbone": {"name": "VideoMAEViT", "embed_dim": 8, **sizes},
        "head": {"name": "VideoMAEDecoder", "in_channels": 8, "embed_dim": 4, **sizes},
        "mask_ratio": 0.5,
    })


def mvit():
    """A tiny MViT, without anything at random in a step."""
    sizes = {"num_frames": 4, "crop_size": 8, "embed_dim": 8, "depths": [1, 1], "num_heads": 2}
    return build_model({
        "framework": "Recognizer3D",
        "backbone": {"name": "MViT", "kv_stride": 2, "drop_path_rate": 0.0, **sizes},
        "head": {"name": "TransformerHead", "num_classes": 5, "in_channels": 16, "drop_ratio": 0.0},
    })


MODELS = {"masked": masked, "mvit": mvit}


def train(distribution, batch_size, accumulate_steps, clips_per_video, model, optimizer, precision):
    optimizer, _ = build_optimizer(optimizer, model)
    loader = Loader(batch_size, distribution.rank, distribution.world_size, clips_per_video)
    if "scale" in precision.state_dict():
        loader.clips[[3, 40]] = np.inf  # clips of one rank each, with which the forward pass overflows
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor,
        plain_phases(1, bn_sync_devices=distribution.world_size),
        [BatchNormSplits(model)],
        distribution=distribution, accumulate_steps=accumulate_steps, precision=precision,
    )
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    ends = {"skipped": trainer.state.num_skipped, "scale": precision.state_dict().get("scale", 0.0)}
    values = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    held = sum(value.size for value in optimizer.state_dict().values())
    return {**values, **ends, "loss": trainer.state.epoch_averages["loss"].mean, "held": held}


def half(dtype):
    if dtype == "bfloat16":
        return RoundedPrecision("O2")
    with gpu_amp():
        return MixedPrecision("O1", dtype)


SLOW = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.01}


TSM = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 32, "drop_ratio": 0.0},
}


class Frames:
    """Random clips of two frames in float64."""

    def __init__(self, distribution):
        rng = np.random.default_rng(0)
        self.clips = rng.normal(size=(16, 2, 3, 24, 24)).astype("float64")
        self.labels = rng.integers(0, 3, 16)
        self.distribution = distribution

    def __len__(self):
        return 2

    def epoch(self, epoch, start_batch=0):
        order = np.random.default_rng(epoch).permutation(16).reshape(2, -1)
        for ids in order[start_batch:]:
            own = ids[self.distribution.rank :: self.distribution.world_size]
            yield Batch(self.clips[own], self.labels[own], own, np.zeros_like(own))


def fine_tuned(distribution, unfreeze_at, twice):
    paddle.seed(11)
    paddle.set_default_dtype("float64")
    model = build_model(TSM)
    paddle.set_default_dtype("float32")
    freezing = Freezing(model, ["stem", "res2"], unfreeze_at)
    if twice:
        recompute_stages(model)
    optimizer, _ = build_optimizer({"name": "Momentum", "learning_rate": 0.01, "weight_decay": 0.01}, model)
    loader = Frames(distribution)
    average = ExponentialMovingAverage(model, 0.9, freezing.later)
    start = {f"start/{name}": value.numpy().copy() for name, value in model.state_dict().items()}
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor,
        plain_phases(2, bn_sync_devices=distribution.world_size),
        [BatchNormSplits(model), Unfreezing(freezing), average],
        distribution=distribution,
    )
    trainer.fit()
    for callback in trainer.callbacks:
        callback.before_evaluation(trainer)
    return {**start, **{name: value.numpy() for name, value in model.state_dict().items()}}


SMALL_BUFFERS = {"comm_buffer_size": 0.01, "last_comm_buffer_size": 0.001, "find_unused_parameters": True}
RUNS = {
    1: [
        ("alone", 8, 1, None),
        ("alone_accumulated", 4, 2, None),
        ("alone_several", 8, 1, None),
        ("alone_half_bfloat16", 8, 1, None),
        *((f"alone_{name}", 8, 1, None) for name in MODELS),
    ],
    2: [
        *((name, 4, 1, {}) for name in MODELS),
        ("plain", 4, 1, {}),
        ("half_bfloat16", 4, 1, {}),
        ("half_float16", 4, 1, {}),
        ("several", 4, 1, {}),
        ("accumulated", 2, 2, SMALL_BUFFERS),
        ("bfloat16", 4, 1, {"allreduce_dtype": "bfloat16", "comm_buffer_size": 0.005}),
        ("sharded", 4, 1, {"sharding_degree": 2}),
        ("sharded_accumulated", 2, 2, {"sharding_degree": 2}),
    ],
}
TUNED = {
    1: [("alone_frozen", None, False, None), ("alone_freed", 1, False, None)],
    2: [
        ("frozen", None, False, {}),
        ("freed", 1, False, {}),
        ("recomputed", 1, True, {}),
        ("sharded_frozen", None, True, {"sharding_degree": 2}),
    ],
}
folder = sys.argv[1]
rank, world_size = launched_rank()
for name, *arguments, exchange in [*RUNS[world_size], *TUNED[world_size]]:
    path = f"{folder}/{name}_{rank}"
    try:
        alone = exchange is None
        distribution = Distribution() if alone else make_distribution(DistributedSettings(**exchange))
    except DistributionError as exc:
        open(path + ".txt", "w").write(str(exc))
        continue
    if any(name == tuned for tuned, *_ in TUNED[world_size]):
        np.savez(path, **fine_tuned(distribution, *arguments))
        continue
    paddle.seed(11)
    model, optimizer = Net(), OPTIMIZER
    kind = name.replace("alone_", "")
    if kind in MODELS:
        model, optimizer = MODELS[kind](), {**OPTIMIZER, "lr_multipliers": {}}
    precision, clips_per_video = Precision(), 1 + name.endswith("several")
    if "half" in name:
        model, optimizer, precision = Plain(), SLOW, half(name.rpartition("_")[2])
    np.savez(path, **train(distribution, *arguments, clips_per_video, model, optimizer, precision))
'''


FAMILIES = ["masked", "mvit"]
# A batch norm sees the clips of one batch at a time, of all processes together.
ALONE = {
    "plain": "alone",
    "several": "alone_several",
    **{name: f"alone_{name}" for name in FAMILIES},
    "accumulated": "alone_accumulated",
    "sharded": "alone",
    "sharded_accumulated": "alone_accumulated",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Function from the name of a run and a rank to the parameters it ended with."""
    folder = tmp_path_factory.mktemp("parallel")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    for number in (1, 2):
        with Job([script, folder], number, folder / f"job{number}") as job:
            job.succeed()

    def load(name, rank):
        refused = folder / f"{name}_{rank}.txt"
        if refused.exists():
            return refused.read_text()
        return dict(np.load(folder / f"{name}_{rank}.npz"))

    return load


def furthest(left, right):
    """The largest difference of two runs, relative to the largest parameter of the tensor."""
    names = set(left) - {"held", "skipped", "scale"}
    # a bias of all keys changes no attention, so what becomes of it is rounding
    sizes = {name: max(np.abs(left[name]).max(), 1e-3) for name in names}
    return max(np.abs(left[name] - right[name]).max() / sizes[name] for name in names)


@pytest.mark.parametrize("name", ["plain", "accumulated", "several", *FAMILIES])
def test_two_processes_take_the_steps_of_one(runs, name):
    for rank in (0, 1):
        assert furthest(runs(ALONE[name], 0), runs(name, rank)) < 1e-5


def test_the_ranks_share_the_state_of_a_sharded_optimizer(runs):
    if not fleet_runs():
        assert 'type  pip install "protobuf<7"' in runs("sharded", 0)
        return
    for name in ("sharded", "sharded_accumulated"):
        shares = [runs(name, rank) for rank in (0, 1)]
        for share in shares:
            assert furthest(runs(ALONE[name], 0), share) < 1e-5
            assert 0 < share["held"] < runs("alone", 0)["held"]
        assert sum(share["held"] for share in shares) == runs("alone", 0)["held"]


def test_gradients_in_16_bits_are_nearly_the_same(runs):
    for rank in (0, 1):
        assert 1e-5 < furthest(runs("alone", 0), runs("bfloat16", rank)) < 2e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ranks_in_mixed_precision_take_the_same_steps_and_leave_the_same_out(runs, dtype):
    first, second = (runs(f"half_{dtype}", rank) for rank in (0, 1))
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
        assert np.isfinite(value).all()
    if dtype == "float16":
        assert 1 <= first["skipped"] <= 2
        assert first["scale"] == [2.0 ** (16 - first["skipped"])]
        return
    for name, value in runs("alone_half_bfloat16", 0).items():
        # where a sum in another order falls on the other side of a tie, the next number is 2⁻⁸ away
        np.testing.assert_allclose(first[name], value, atol=1e-3, err_msg=name)


TUNED = {
    "frozen": "alone_frozen",
    "freed": "alone_freed",
    "recomputed": "alone_freed",
    "sharded_frozen": "alone_frozen",
}


@pytest.mark.parametrize("name", TUNED)
def test_two_processes_fine_tune_as_one_and_frozen_parts_keep_every_bit(runs, name):
    if name == "sharded_frozen" and not fleet_runs():
        pytest.skip("this Paddle's fleet does not run with the protobuf that is installed")
    for rank in (0, 1):
        found, expected = runs(name, rank), runs(TUNED[name], 0)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-7, err_msg=key)
        early = [key for key in found if key.startswith(("backbone.conv.", "backbone.res2a."))]
        same = [np.array_equal(found[key], found[f"start/{key}"]) for key in early]
        assert early
        assert all(same) == name.endswith("frozen")
