"""The suite for a machine with a GPU: `make test-gpu`. Elsewhere its tests are skipped, with one reason.

GPU_SUITE_DEVICE=cpu is a rehearsal: it runs on the CPU what a CPU can. This tests the suite, not the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.apps.doctor.device_check import environment, no_gpu
from paddlevideo_fast.assembly.plan import make_precision
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.errors import ConfigError

REHEARSAL = os.environ.get("GPU_SUITE_DEVICE") == "cpu"
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Marks the tests of this folder; those of the copies, on which all others rely, go first."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    items.sort(key=lambda item: item.path.name != "test_gpu_race.py")


@pytest.fixture(scope="session")
def device() -> str:
    """Paddle's name of the device that is tested; without one the test is skipped."""
    import paddle

    if not REHEARSAL and (reason := no_gpu()):
        pytest.skip(f"no GPU: {reason}")
    return paddle.set_device("cpu") and "cpu" if REHEARSAL else paddle.get_device()


@pytest.fixture
def figure(record_property: Any) -> Callable[[str, Any], None]:
    """`figure("losses deviate by", 1e-6)`: something this test has measured, for the table at the end."""

    def record(name: str, value: Any) -> None:
        record_property(name, f"{value:.2g}" if isinstance(value, float) else value)

    return record


def precision_on(dtype: str) -> Precision:
    """The precision of a run in this format on the current device, which may lack it: a test is skipped."""
    overrides = [] if dtype == "float32" else ["amp=true", f"amp_dtype={dtype}"]
    try:
        return make_precision(RunSpec.for_training(load_config("tsm_motion", overrides)))
    except ConfigError as reason:
        pytest.skip(str(reason).splitlines()[-1].strip())


@pytest.fixture
def same_kernels(device: str) -> Iterator[None]:
    """Two equal computations give equal bits: cuDNN takes deterministic algorithms only."""
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
    """The table to send back; without a GPU, the names of the tests that were not run."""
    rows = list(_rows(terminalreporter.stats))
    reason = None if REHEARSAL else no_gpu()
    if not rows:
        return
    if reason:
        terminalreporter.section("tests of the GPU suite that were not run; `-rs` says why")
        terminalreporter.line(f"{reason}.")
    else:
        terminalreporter.section("GPU report: docs/en/gpu_report.md says where to send it")
        for name, value in environment().items():
            terminalreporter.line(f"{name:<12}{value}")
    width = max(len(test) for _, test, _ in rows)
    for outcome, test, told in rows:
        terminalreporter.line(f"  {test}" if reason else f"{outcome:<9}{test:<{width}}  {told}".rstrip())


def _rows(stats: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(outcome, test, figures or reason) of each test of this folder, once, in the order of their names."""
    found = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in stats.get(outcome, []):
            if report.nodeid.startswith("tests/gpu/"):
                found[report.nodeid.removeprefix("tests/gpu/test_gpu_")] = (outcome, _told(report))
    for test, (outcome, told) in sorted(found.items()):
        yield outcome, test, told


def _told(report: Any) -> str:
    """The figures of a test that passed, or why it did not."""
    if report.passed:
        return ", ".join(f"{name} {value}".strip() for name, value in report.user_properties)
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).strip().splitlines()[0]
