"""The memory of freed tensors stays with the process: the kernel need not clear it again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

_BYTES = 20_000_000
_TIMES = 20
_CHILD = f"""
import resource, sys
import paddlevideo_fast
from paddlevideo_fast.config.startup import prepare_process
import paddle

if sys.argv[1:]:
    prepare_process()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

paddle.set_device("cpu")
paddle.ones([{_BYTES} // 4])
before = faults()
for _ in range({_TIMES}):
    paddle.ones([{_BYTES} // 4])
print("faults", faults() - before)
"""

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt of the GNU C library"),
]


def page_faults(*, prepared: bool = True, **variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *(["prepared"] if prepared else [])],
        env={**environment, **variables},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split("faults")[1])


def test_tensors_take_the_memory_of_freed_ones() -> None:
    # of 20 tensors, one or two lie where none was; without the setting more than 10 do, see below
    assert page_faults() < _TIMES / 4 * _BYTES / os.sysconf("SC_PAGESIZE")


needs_small_pages = pytest.mark.skipif(
    "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    else False,
    reason="large pages hide the difference",
)


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_MMAP_MAX_": "65536"},
        {"PADDLEVIDEO_FAST_MALLOC": "off"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=65536"},
    ],
    ids=lambda variables: next(iter(variables)),
)
@needs_small_pages
def test_variables_of_the_user_go_first(variables: dict[str, str]) -> None:
    assert page_faults(**variables) > _TIMES / 2 * _BYTES / os.sysconf("SC_PAGESIZE")


@needs_small_pages
def test_an_import_leaves_the_process_alone() -> None:
    assert page_faults(prepared=False) > _TIMES / 2 * _BYTES / os.sysconf("SC_PAGESIZE")
