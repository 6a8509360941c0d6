"""The copy to the device runs one batch ahead, in order, and errors come in their turn."""

from __future__ import annotations

import threading

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import prefetch
from paddlevideo_fast.engine.prefetch import one_ahead, to_device
from paddlevideo_fast.loader import Batch


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
    assert len(taken) <= 3


def test_a_copy_keeps_its_source_until_it_is_done(monkeypatch):
    """The calls of `DeviceCopy`, with a CPU in the place of the GPU: what the events say is made up."""
    done = set()

    class Event:
        def record(self, stream):
            self.stream = stream

        def query(self):
            return self in done

    class Pinned:
        def __init__(self, clips, place):
            self.clips, self.place = clips, place

        def cuda(self, number, blocking):
            assert (number, blocking) == (3, False)
            return paddle.Tensor(self.clips)

    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:3")
    monkeypatch.setattr(paddle, "CUDAPinnedPlace", lambda: "pinned")
    monkeypatch.setattr(prefetch.paddle, "to_tensor", Pinned)
    monkeypatch.setattr(paddle.device.cuda, "Event", Event)
    monkeypatch.setattr(paddle.device.cuda, "current_stream", lambda number: f"stream {number}")
    copy = prefetch.DeviceCopy(3)
    numbers = np.arange(2)
    batches = [Batch(np.full((2, 1, 2, 2, 3), n, np.uint8), numbers, numbers, numbers) for n in range(3)]
    first, second = copy(batches[0]), copy(batches[1])
    assert (first.clips.numpy() == 0).all()
    assert (second.clips.numpy() == 1).all()
    assert (first.labels == numbers).all()
    (event, pinned), _ = copy._under_way
    assert (event.stream, pinned.place) == ("stream 3", "pinned")
    assert pinned.clips is batches[0].clips
    done.add(event)
    copy(batches[2])
    assert [source.clips is batch.clips for (_, source), batch in zip(copy._under_way, batches[1:])] == [
        True
    ] * 2
    empty = Batch(np.empty((0, 0, 0, 0, 3), np.uint8), *[np.empty(0, np.int64)] * 3)
    assert copy(empty) is empty
    assert [batch.clips.numpy().max() for batch in to_device(iter(batches))] == [0, 1, 2]
