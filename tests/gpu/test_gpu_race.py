"""The device reads the clips that the host has sent, although the host runs ahead of it.

Before half of the steps, the host queues large matrix products, so that the device falls behind. It also
queues kernels that write to memory of a batch's size, and frees this memory at once. Each step sums the bytes
that the device reads. The sum is wrong if

- a kernel reads a batch before its copy has arrived,
- the host fills a pinned buffer again before its copy has ended, or
- the memory of a batch is given to another tensor while kernels still read it.
"""

import dataclasses

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.doctor.device_check import BatchList, made_up_batches, small_trainer
from paddlevideo_fast.device import upload
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.machine import gpu_number
from tests.gpu.conftest import REHEARSAL

NUM_STEPS = 8 if REHEARSAL else 200
PRODUCT_SIDE = 64 if REHEARSAL else 4096  # some milliseconds on a T4, one on an H100
PRODUCTS = (20, 2)  # before the first step, and before every second pair of steps
NUM_BATCHES = 7  # more than the buffers, and prime: no buffer gets the same batch twice in a row


class Backlog:
    """Queues work, and writes to freed memory blocks that have the size of a batch."""

    def __init__(self, shape):
        self.shape = shape
        self.factor = paddle.full([PRODUCT_SIDE, PRODUCT_SIDE], 0.5)

    def queue(self, step):
        if step % 4 < 2:
            for _ in range(PRODUCTS[step > 0]):
                paddle.matmul(self.factor, self.factor)
            for value in (1, 2, 3):
                paddle.full(self.shape, value, "uint8")


class ByteSums:
    """Sums of bytes, each times its position. The sums are integers, so their order does not matter."""

    def __init__(self, num_bytes):
        self.factors = paddle.arange(num_bytes, dtype="int64") % 8191 + 1
        self.sums = []

    def add(self, clips):
        """Sums a tensor on its device. On a CPU, clips are arrays."""
        tensor = paddle.to_tensor(clips) if isinstance(clips, np.ndarray) else clips
        self.sums.append((tensor.reshape([-1]).astype("int64") * self.factors).sum())

    def read(self):
        return [int(each) for each in self.sums]


def expected_sums(batches):
    factors = np.arange(batches[0].clips.size) % 8191 + 1
    by_batch = {id(batch): int(batch.clips.reshape(-1).astype(np.int64) @ factors) for batch in batches}
    return [by_batch[id(batch)] for batch in batches]


@pytest.fixture(scope="module")
def batches():
    size, side = (2, 28) if REHEARSAL else (16, 112)
    different = made_up_batches(NUM_BATCHES, size, side)
    return [different[step % NUM_BATCHES] for step in range(NUM_STEPS)]


def test_clips_are_read_whole(device, batches):
    """Validation, stored features, teachers and the doctor read their clips in this way."""
    backlog, sums = Backlog(batches[0].clips.shape), ByteSums(batches[0].clips.size)
    for step, batch in enumerate(to_device(iter(batches))):
        backlog.queue(step)
        sums.add(batch.clips)
    assert sums.read() == expected_sums(batches)


def test_labels_are_read_whole(device):
    arrays = [np.arange(step, step + 64) for step in range(NUM_STEPS)]
    backlog, sums = Backlog([64]), ByteSums(64)
    for step, array in enumerate(arrays):
        labels = upload(array)
        backlog.queue(step)
        sums.add(labels)
        del labels
    assert sums.read() == [int(array @ np.arange(1, 65)) for array in arrays]


class Watched(Callback):
    """Queues a backlog before each step of a training, and keeps the losses and sums of the steps."""

    def __init__(self, shape, backlog):
        self.backlog = Backlog(shape) if backlog else None
        self.sums = ByteSums(int(np.prod(shape)))
        self.losses = []

    def fit_begin(self, trainer):
        preprocess = trainer.preprocess
        trainer.preprocess = lambda clips: self.sums.add(clips) or preprocess(clips)
        trainer.objective, self.model = self, trainer.model

    def step_begin(self, trainer):
        if self.backlog is not None:
            self.backlog.queue(trainer.state.step)

    def loss(self, logits, labels):
        self.losses.append(self.model.loss(logits, labels))
        return self.losses[-1]


def trained(batches, backlog):
    """Trains, and returns the sums of the bytes, the losses and the bytes of the parameters."""
    watched = Watched(batches[0].clips.shape, backlog)
    trainer = small_trainer(BatchList(batches), [watched])
    trainer.fit()
    losses = [float(each) for each in watched.losses]
    return watched.sums.read(), losses, [each.numpy().tobytes() for each in trainer.model.parameters()]


def copied_in_turn(batches):
    """Does what `to_device` does, but waits for the device before and after each copy."""
    for batch in batches:
        wait_for_device()
        clips = paddle.to_tensor(batch.clips)
        wait_for_device()
        yield dataclasses.replace(batch, clips=clips)


def wait_for_device():
    if gpu_number(paddle.get_device()) is not None:
        paddle.device.synchronize()


def test_training_behind_a_backlog_is_training_with_synchronous_copies(
    device, batches, same_kernels, monkeypatch
):
    found = trained(batches, backlog=True)
    monkeypatch.setattr("paddlevideo_fast.engine.trainer.to_device", copied_in_turn)
    monkeypatch.setattr("paddlevideo_fast.engine.trainer.upload", paddle.to_tensor)
    expected, again = trained(batches, backlog=False), trained(batches, backlog=False)
    assert expected[0] == expected_sums(batches)
    assert again == expected, "two runs with synchronous copies differ, so a kernel is not deterministic"
    assert found[0] == expected[0], "a step has read bytes that are not of its batch"
    assert found[1:] == expected[1:], "all steps have read the right bytes, but losses or parameters differ"
