"""Signals while a run trains."""

import signal
from concurrent.futures import ThreadPoolExecutor

from paddlevideo_fast.engine.interrupt import InterruptGuard


def test_sigterm_again_is_the_same_request():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with InterruptGuard() as guard:
            for _ in range(3):  # as Paddle's launcher does
                signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # while the process ends
        assert guard.requested == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is before[1]
    finally:
        signal.signal(signal.SIGTERM, before[0])


def test_without_a_signal_the_handlers_are_as_before():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with InterruptGuard():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_trains_without_handlers_and_says_so(make_trainer, caplog):
    trainer = make_trainer([])

    def train():
        with trainer.interrupt:
            return trainer.fit()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train).result().step > 0
    assert "not in the main thread: Ctrl-C and SIGTERM end it without saving" in caplog.text
