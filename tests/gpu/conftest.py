"""The tests of a machine with a GPU: `make test-gpu`. Without a GPU they are skipped, all for one reason.

With GPU_SUITE_DEVICE=cpu, the tests that a CPU can run do run on it. This rehearsal tests the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.apps.doctor.device_check import environment, no_gpu
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import ConfigError

REHEARSAL = os.environ.get("GPU_SUITE_DEVICE") == "cpu"
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Marks the tests of this folder. The tests of copies to the GPU go first, as all others need copies."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    items.sort(key=lambda item: item.path.name != "test_gpu_race.py")


@pytest.fixture(scope="session")
def device() -> str:
    """Paddle's name of the device to test, such as "gpu:0". Without a GPU the test is skipped."""
    import paddle

    if not REHEARSAL and (reason := no_gpu()):
        pytest.skip(f"no GPU: {reason}")
    return paddle.set_device("cpu") and "cpu" if REHEARSAL else paddle.get_device()


@pytest.fixture
def figure(record_property: Any) -> Callable[[str, Any], None]:
    """`figure("losses deviate by", 1e-6)` puts a number that the test has measured into the last table."""

    def record(name: str, value: Any) -> None:
        record_property(name, f"{value:.2g}" if isinstance(value, float) else value)

    return record


def precision_on(dtype: str) -> Precision:
    """The precision of a run with this dtype. If the device cannot train in it, the test is skipped."""
    overrides = [] if dtype == "float32" else ["amp=true", f"amp_dtype={dtype}"]
    try:
        return make_precision(RunSpec.for_training(load_config("tsm_motion", overrides)).run)
    except ConfigError as reason:
        pytest.skip(str(reason).splitlines()[-1].strip())


@pytest.fixture
def same_kernels(device: str) -> Iterator[None]:
    """During the test, cuDNN takes deterministic algorithms only: equal computations give equal bits."""
    import paddle

    if device == "cpu":
        yield
        return
    flags = {"FLAGS_cudnn_deterministic": True, "FLAGS_cudnn_exhaustive_search": False}  # not both
    before = paddle.get_flags(list(flags))
    paddle.set_flags(flags)
    yield
    paddle.set_flags(before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table that a GPU owner sends back. Without a GPU, prints which tests were skipped."""
    rows = list(_rows(terminalreporter.stats))
    reason = None if REHEARSAL else no_gpu()
    if not rows:
        return
    if reason:
        terminalreporter.section("tests of the GPU suite that were not run; `-rs` says why")
        terminalreporter.line(f"{reason}.")
    else:
        terminalreporter.section("GPU report: docs/en/performance.md says where to send it")
        for name, value in environment().items():
            terminalreporter.line(f"{name:<12}{value}")
    width = max(len(test) for _, test, _ in rows)
    for outcome, test, text in rows:
        terminalreporter.line(f"  {test}" if reason else f"{outcome:<9}{test:<{width}}  {text}".rstrip())


def _rows(stats: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(outcome, test, figures or reason) of each test of this folder, sorted by the test's name."""
    rows = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in stats.get(outcome, []):
            if report.nodeid.startswith("tests/gpu/"):
                rows[report.nodeid.removeprefix("tests/gpu/test_gpu_")] = (outcome, _text(report))
    for test, (outcome, text) in sorted(rows.items()):
        yield outcome, test, text


def _text(report: Any) -> str:
    """The figures of a test that has passed; else the reason why it was skipped or failed."""
    if report.passed:
        return ", ".join(f"{name} {value}".strip() for name, value in report.user_properties)
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).strip().splitlines()[0]
