"""Steps on a GPU: numbers, read-backs, averages and memory."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from paddlevideo_fast.apps.doctor.device_check import (
    CHECKS,
    ON_ONNXRUNTIME,
    BatchList,
    NotRun,
    losses_on,
    made_up_batches,
    small_trainer,
)
from paddlevideo_fast.apps.export.export import computing_on, deviation_of
from paddlevideo_fast.apps.predict.program import ProviderError
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import MixedPrecision
from paddlevideo_fast.engine.callbacks import Callback, ExponentialMovingAverage, Recorder
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import MissingExtraError
from paddlevideo_fast.machine import gpu_number, installed_gpus
from tests.gpu.conftest import REHEARSAL, precision_on
from tests.support.gpu_amp import gpu_amp
from tests.support.read_backs import read_backs


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_of_the_doctor(request, figure, name):
    """Steps in all precisions and layouts, copies, overlap, CUDA and TensorRT against the CPU's float32."""
    needs_no_paddle = name in ON_ONNXRUNTIME and installed_gpus()
    device = paddle.get_device() if needs_no_paddle else request.getfixturevalue("device")
    if REHEARSAL and name.startswith(("reading", "Paddle Inference", "onnxruntime")):
        pytest.skip("on a CPU tests/apps/doctor/test_device_check.py does what can be done")
    try:
        figure("", CHECKS[name](device))
    except (NotRun, ProviderError, MissingExtraError) as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_softmax_and_layer_norm_compute_in_float32(device, level):
    if device == "cpu":
        pytest.skip("a CPU multiplies no matrices in float16")
    with computing_on(device), MixedPrecision(level, "float16").operators(nn.Layer()):
        x = paddle.rand([4, 8]).astype("float16")
        assert paddle.matmul(x, x, transpose_y=True).dtype == paddle.float16
        assert F.softmax(x).dtype == paddle.float32
        assert nn.LayerNorm(8)(x).dtype == paddle.float32


TOO_LARGE = float("inf") if REHEARSAL else 1e9  # for float16; the rehearsal computes in float32


class Overflowing(Callback):
    """Lets one step overflow in its forward pass or in its gradients, and looks at what each step changes."""

    def __init__(self, step, where):
        self.step, self.where, self.changed = step, where, []

    def fit_begin(self, trainer):
        self.trainer, self.preprocess = trainer, trainer.preprocess
        trainer.preprocess, trainer.objective = self.clips, self

    def clips(self, clips):
        return self.preprocess(clips) * (TOO_LARGE if self.is_now("forward pass") else 1.0)

    def loss(self, logits, labels):
        return self.trainer.model.loss(logits, labels) * (TOO_LARGE if self.is_now("gradients") else 1.0)

    def is_now(self, where):
        return (self.step, self.where) == (self.trainer.state.step, where)

    def step_begin(self, trainer):
        self.before = self.all_tensors()

    def step_end(self, trainer):
        pairs = zip(self.before, self.all_tensors(), strict=True)
        self.changed.append(any((one != other).any() for one, other in pairs))

    def all_tensors(self):
        return [each.numpy() for each in self.trainer.model.state_dict().values()]


@pytest.mark.parametrize("where", ["gradients", "forward pass"])
def test_an_overflow_in_float16_is_a_skipped_step_that_is_counted(device, figure, where):
    """Parameters and running statistics stay as they are, and the next steps train."""
    with computing_on(device), gpu_amp() if REHEARSAL else contextlib.nullcontext():
        overflowing = Overflowing(3, where)
        precision = MixedPrecision("O1", "float16") if REHEARSAL else precision_on("float16")
        trainer = small_trainer(BatchList(made_up_batches(8)), [overflowing], precision)
        trainer.fit()
    figure("steps left out:", trainer.state.num_skipped)
    assert overflowing.changed[3:] == [False, True, True, True, True]
    assert trainer.state.num_skipped == overflowing.changed.count(False)


def test_amp_takes_the_format_that_the_device_is_made_for(device, figure):
    """bfloat16 from compute capability 8.0 on, float16 below."""
    with computing_on(device):
        name = make_precision(RunSpec.for_training(load_config("tsm_motion", ["amp=true"])).run).name
        has_bfloat16 = device == "cpu" or paddle.device.cuda.get_device_capability() >= (8, 0)
    figure("amp is", name)
    assert name.startswith("bfloat16" if has_bfloat16 else "float16")


def test_two_runs_take_the_same_steps_within_rounding(device):
    assert deviation_of(losses_on(device), losses_on(device)) < 1e-3


def test_a_step_between_log_lines_reads_nothing_back(device):
    with computing_on(device), read_backs() as found:
        trainer = small_trainer(BatchList(made_up_batches(12)), [Recorder([], 100)])
        trainer.callbacks.append(ExponentialMovingAverage(trainer.model, 0.9))
        trainer.fit()
    assert len(found.steps) == 13
    assert [step for step in found.steps if step] == []


class _Average(Callback):
    """The moving average in NumPy."""

    def __init__(self, model):
        self.model, self.values, self.step = model, {}, 0

    def fit_begin(self, trainer):
        self.values = {name: each.numpy() for name, each in self.model.named_parameters()}

    def step_end(self, trainer):
        decay = min(0.9, (1 + trainer.state.step) / (10 + trainer.state.step))
        for name, each in self.model.named_parameters():
            self.values[name] = decay * self.values[name] + (1 - decay) * each.numpy()


def test_the_moving_average_is_the_one_of_numpy(device):
    with computing_on(device):
        trainer = small_trainer(BatchList(made_up_batches(6)))
        ours = ExponentialMovingAverage(trainer.model, 0.9)
        theirs = _Average(trainer.model)
        trainer.callbacks += [ours, theirs]
        trainer.fit()
        found = {name: value.numpy() for name, value in ours.tensors().items()}
    assert found
    for name, value in found.items():
        np.testing.assert_allclose(value, theirs.values[name], rtol=1e-4, atol=1e-6)


class _Memory(Callback):
    def __init__(self):
        self.mebibytes = {}

    def step_end(self, trainer):
        if trainer.state.step in (100, 1000):
            self.mebibytes[trainer.state.step] = paddle.device.cuda.memory_allocated() / 2**20


def test_memory_is_flat_over_1000_steps(device, figure):
    if gpu_number(device) is None:
        pytest.skip("Paddle counts memory on GPUs only")
    kept = _Memory()
    with computing_on(device):
        small_trainer(BatchList(made_up_batches(8) * 125), [kept]).fit()
    figure("MiB after 100 and 1000 steps:", f"{kept.mebibytes[100]:.1f} and {kept.mebibytes[1000]:.1f}")
    assert kept.mebibytes[1000] <= kept.mebibytes[100] + 1
