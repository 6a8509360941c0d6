"""The copy to the device runs one batch ahead, in order, and errors come in their turn."""

import contextlib
import threading

import numpy as np
import paddle
import pytest

from paddlevideo_fast.device import LAG, pinned_buffers, upload
from paddlevideo_fast.engine.callbacks import Callback, Recorder
from paddlevideo_fast.engine.prefetch import one_ahead, to_device
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling.losses import CrossEntropyLoss
from tests.support.fake_device import FakeDevice


def test_on_a_cpu_the_batches_pass_as_they_are():
    batches = iter([1, 2])
    assert to_device(batches) is batches


def test_the_next_item_is_prepared_while_the_consumer_works():
    begun = [threading.Event() for _ in range(5)]
    threads = set()

    def prepare(item):
        threads.add(threading.current_thread())
        begun[item].set()
        return item * 10

    seen = []
    for value in one_ahead(iter(range(5)), prepare):
        seen.append(value)
        number = value // 10
        if number < 4:
            assert begun[number + 1].wait(10)  # without this consumer asking for it
        if number < 3:
            assert not begun[number + 2].is_set()  # and no further
    assert seen == [0, 10, 20, 30, 40]
    assert threading.main_thread() not in threads
    assert len(threads) == 1
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("fails", ["items", "prepare"])
def test_an_error_comes_in_its_turn(fails):
    def items():
        yield 0
        yield 1
        if fails == "items":
            raise ValueError("clip 2")
        yield 2

    def prepare(item):
        if item == 2:
            raise ValueError("clip 2")
        return item

    ahead = one_ahead(items(), prepare)
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ValueError, match="clip 2"):
        next(ahead)


def test_leaving_early_ends_the_thread():
    before = threading.active_count()
    taken = []
    ahead = one_ahead(iter(range(100)), lambda item: taken.append(item) or item)
    assert next(ahead) == 0
    ahead.close()
    assert threading.active_count() == before
    assert taken == [0, 1]


def test_leaving_waits_for_the_item_that_is_being_prepared():
    """The loader may be closed as soon as the consumer has left: nobody uses it any more."""
    may_end, ended = threading.Event(), threading.Event()

    def prepare(item):
        if item:
            assert may_end.wait(10)
            ended.set()
        return item

    ahead = one_ahead(iter(range(3)), prepare)
    assert next(ahead) == 0
    leaving = threading.Thread(target=ahead.close)
    leaving.start()
    leaving.join(0.05)
    assert leaving.is_alive()
    may_end.set()
    leaving.join(10)
    assert ended.is_set()


@pytest.mark.gpu
@pytest.mark.skipif(gpu_number(paddle.get_device()) is None, reason="needs a CUDA device")
def test_clips_reach_the_device_whole_and_in_order():
    """Also where the device is busy, and the host has freed the arrays that the clips were copied from."""
    rng = np.random.default_rng(0)
    numbers = np.arange(4)
    shapes = [(4, 8, 112, 112, 3)] * 10 + [(0, 0, 0, 0, 3)] + [(4, 8, 112, 112, 3)] * 10
    clips = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
    batches = (Batch(each.copy(), *[numbers[: len(each)]] * 3) for each in clips)
    busy = paddle.rand([4096, 4096])
    found = []
    for batch in to_device(batches):
        busy = busy @ busy
        found.append(batch.clips)
    assert len(found) == len(clips)
    for expected, tensor in zip(clips, found):
        np.testing.assert_array_equal(np.asarray(tensor), expected)
    assert found[0].place.is_gpu_place()


@pytest.fixture
def device():
    pinned_buffers.cache_clear()
    with FakeDevice().installed() as device:
        yield device


def test_batches_go_through_pinned_memory_that_is_used_again(device):
    rng = np.random.default_rng(0)
    sizes = [4, 4, 4, 0, 2, 4, 4, 2, 4]
    clips = [rng.integers(0, 256, (size, 2, 8, 8, 3), np.uint8) for size in sizes]
    read = paddle.Tensor.numpy
    batches = (Batch(each.copy(), *[np.arange(len(each))] * 3) for each in clips)
    pinned = []
    device.on_pin = pinned.append
    for number, batch in enumerate(to_device(batches)):
        device.launch(0.02)  # a step, which uses the batch
        if sizes[number]:
            np.testing.assert_array_equal(read(batch.clips), clips[number])
            assert batch.labels.tolist() == list(range(sizes[number]))
        else:
            assert len(batch) == 0
    assert number == len(sizes) - 1
    assert len(pinned) < sum(map(bool, sizes))


def test_the_next_epoch_goes_on_with_the_buffers(device):
    numbers, pinned = np.arange(4), []
    device.on_pin = pinned.append
    for epoch in range(3):
        batches = (Batch(np.full((4, 2, 8, 8, 3), epoch, np.uint8), *[numbers] * 3) for _ in range(6))
        for batch in to_device(batches):
            assert (batch.clips == epoch).all()
        if epoch == 0:
            of_first = len(pinned)
    assert len(pinned) == of_first


def test_buffers_of_shapes_that_come_no_more_are_given_back(device):
    for size in range(1, 60):
        upload(np.zeros(size, np.uint8))
        device.wait(device.num_launched)
    pinned = []
    device.on_pin = pinned.append
    upload(np.zeros(50, np.uint8))  # of one of the last shapes
    assert pinned == []
    upload(np.zeros(3, np.uint8))
    assert len(pinned) == 1


def test_the_host_waits_where_it_is_far_ahead_of_the_device(device):
    """Else pinned memory grows with each batch until the device has caught up."""
    clips = np.zeros((4, 2, 8, 8, 3), np.uint8)
    batches = (Batch(clips, *[np.arange(4)] * 3) for _ in range(12))
    pinned = []
    device.on_pin = pinned.append
    for _ in to_device(batches):
        device.launch(0.02)
        assert device.num_launched - device.num_done <= LAG + 2
    assert len(pinned) <= LAG + 3


def test_the_host_is_ahead_of_a_busy_device_and_takes_the_same_steps(make_trainer, monkeypatch):
    leads, trained = [], []
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(paddle.device.cuda, name, lambda number: 0)

    class Watch(Callback):
        def step_begin(self, trainer):
            if device is not None:
                leads.append(device.num_launched - device.num_done)
                device.launch(0.1)

    for device in (None, FakeDevice()):
        with contextlib.nullcontext() if device is None else device.installed():
            trainer = make_trainer([Watch(), Recorder([], interval=6)], epochs=1)
            trainer.preprocess = lambda clips: paddle.Tensor.astype(
                clips if isinstance(clips, paddle.Tensor) else paddle.to_tensor(clips), "float32"
            )
            trainer.model.loss = lambda *batch: CrossEntropyLoss()(*batch)  # Paddle 2.6's own reads back
            trainer.fit()
        trained.append(trainer.model.fc.weight.numpy())
    np.testing.assert_array_equal(*trained)
    assert max(leads) >= 2
