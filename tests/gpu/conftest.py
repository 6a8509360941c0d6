"""The suite for a machine with a GPU: `make test-gpu`. Elsewhere its tests are skipped, with one reason.

GPU_SUITE_DEVICE=cpu is a rehearsal: it runs on the CPU what a CPU can. This tests the suite, not the device.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.doctor.device_check import no_gpu

REHEARSAL = os.environ.get("GPU_SUITE_DEVICE") == "cpu"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> str:
    """Paddle's name of the device that is tested; without one the test is skipped."""
    import paddle

    if not REHEARSAL and (reason := no_gpu()):
        pytest.skip(f"no GPU: {reason}")
    return "cpu" if REHEARSAL else paddle.get_device()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = [report.nodeid for report in terminalreporter.stats.get("skipped", [])]
    own = sorted({name for name in skipped if name.startswith("tests/gpu/")})
    if own and not REHEARSAL and (reason := no_gpu()):
        terminalreporter.section("tests of the GPU suite that were not run; `-rs` says why")
        terminalreporter.line(f"{reason}.")
        for name in own:
            terminalreporter.line(f"  {name}")
