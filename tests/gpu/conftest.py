"""The suite for a machine with a GPU: `make test-gpu`. Elsewhere its tests are skipped, with one reason.

GPU_SUITE_DEVICE=cpu is a rehearsal: it runs on the CPU what a CPU can. This tests the suite, not the device.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.doctor.device_check import no_gpu

_OWN: list[str] = []
REHEARSAL = os.environ.get("GPU_SUITE_DEVICE") == "cpu"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    _OWN.extend(item.nodeid for item in own)
    for item in own:
        item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")
def _needs_a_gpu() -> None:
    if not REHEARSAL and (reason := no_gpu()):
        pytest.skip(f"no GPU: {reason}")


@pytest.fixture(scope="session")
def device() -> str:
    """Paddle's name of the device that is tested."""
    import paddle

    return "cpu" if REHEARSAL else paddle.get_device()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _OWN and not REHEARSAL and (reason := no_gpu()):
        terminalreporter.section("the GPU suite was not run")
        terminalreporter.line(f"{reason}. With a GPU these {len(_OWN)} tests run:")
        for name in _OWN:
            terminalreporter.line(f"  {name}")
