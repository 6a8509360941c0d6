"""The memory of freed tensors stays with the process: the kernel need not clear it again."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from paddlevideo_fast.extensions.cpu.tuning import keep_freed_memory, malloc_variables

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt of the GNU C library"),
]
_BYTES = 20_000_000
_TIMES = 20
_CHILD = f"""
import resource
from paddlevideo_fast.config.startup import prepare_process
import paddle

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

prepare_process()
paddle.set_device("cpu")
paddle.ones([{_BYTES} // 4])
before = faults()
for _ in range({_TIMES}):
    paddle.ones([{_BYTES} // 4])
print("faults", faults() - before)
"""


def of_child(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    ).stdout


def test_tensors_take_the_memory_of_freed_ones() -> None:
    # of 20 tensors, one or two lie where none was; without the setting all of them, where pages are small
    assert int(of_child(_CHILD).split("faults")[1]) < _TIMES / 4 * _BYTES / os.sysconf("SC_PAGESIZE")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Which settings of the C library `keep_freed_memory` changes."""
    for name in malloc_variables():
        monkeypatch.delenv(name)
    changed: list[int] = []
    library = SimpleNamespace(mallopt=lambda setting, value: changed.append(setting))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)

    def change() -> list[int]:
        keep_freed_memory()
        return changed

    return change


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_MMAP_MAX_": "65536"},
        {"PADDLEVIDEO_FAST_MALLOC": "off"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=65536"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_of_the_user_go_first(variables, settings, monkeypatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert settings() == []
    assert malloc_variables() == list(variables)


def test_without_them_both_settings_change(settings) -> None:
    assert settings() == [-4, -1]


def test_an_import_leaves_the_process_alone() -> None:
    told = of_child(
        "import os, sys\n"
        "before = dict(os.environ)\n"
        "names = []\n"
        "sys.addaudithook(lambda event, args: names.append(args[1]) if event == 'ctypes.dlsym' else None)\n"
        "import paddlevideo_fast.assembly\n"
        "from paddlevideo_fast.config.startup import prepare_process\n"
        "print({name for name, value in os.environ.items() if before.get(name) != value and 'MKL' in name})\n"
        "print('mallopt' in names)\n"
        "prepare_process()\n"
        "print('mallopt' in names)\n"
    )
    assert told == "set()\nFalse\nTrue\n"
