"""Which path Paddle's MKL is told to take, and when it is left alone."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

import paddlevideo_fast
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.extensions.cpu import tuning
from paddlevideo_fast.extensions.cpu.tuning import take_mkl_path
from paddlevideo_fast.machine import MKL_PATH

AVX2 = "fpu sse2 fma avx avx2"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl avx512cd"
WORKS = "import sys; assert sys.argv[1]"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"

needs_mkl = pytest.mark.skipif(tuning._libraries_of_paddle() is None, reason="this Paddle has no MKL")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of what is remembered; no path is chosen yet, and any path works."""
    monkeypatch.delenv(MKL_PATH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_MKL_TRIAL", WORKS)
    return tmp_path / "cache" / "paddlevideo_fast"


@pytest.fixture
def processor(tmp_path: Path) -> Any:
    """`processor(vendor, flags)`: the kernel's description of two of them."""

    def write(vendor: str, flags: str) -> Path:
        one = f"processor : 0\nvendor_id : {vendor}\nmodel name : made up\nflags : {flags}\n\n"
        path = tmp_path / "cpuinfo"
        path.write_text(one * 2)
        return path

    return write


@needs_mkl
@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", AVX512, "7"),
        ("HygonGenuine", AVX2, "5"),
        ("AuthenticAMD", AVX512.replace("avx512vl", ""), "5"),
        ("AuthenticAMD", AVX2.replace("fma", ""), None),
        ("AuthenticAMD", "", None),
        ("GenuineIntel", AVX512, None),
    ],
)
def test_the_flags_decide(processor, vendor, flags, expected):
    take_mkl_path(processor(vendor, flags))
    assert os.environ.get(MKL_PATH) == expected


def test_where_the_kernel_describes_no_such_processor(tmp_path):
    take_mkl_path(tmp_path / "none")
    (tmp_path / "arm").write_text("processor : 0\nFeatures : fp asimd\n\n")
    take_mkl_path(tmp_path / "arm")
    assert MKL_PATH not in os.environ


def test_users_decide(processor, monkeypatch):
    monkeypatch.setenv("PADDLEVIDEO_FAST_MKL", "off")
    take_mkl_path(processor("AuthenticAMD", AVX512))
    assert MKL_PATH not in os.environ
    monkeypatch.delenv("PADDLEVIDEO_FAST_MKL")
    monkeypatch.setenv(MKL_PATH, "4")
    take_mkl_path(processor("AuthenticAMD", AVX512))
    assert os.environ[MKL_PATH] == "4"


@needs_mkl
def test_a_path_that_ends_the_process_is_remembered(processor, monkeypatch, cache):
    """As where a container shows flags that the processor lacks."""
    monkeypatch.setattr(tuning, "_MKL_TRIAL", DIES)
    take_mkl_path(processor("AuthenticAMD", AVX512))
    assert MKL_PATH not in os.environ
    assert [path.read_text() for path in cache.iterdir()] == ["fails", "fails"]
    monkeypatch.setattr(tuning, "_MKL_TRIAL", WORKS)
    take_mkl_path(processor("AuthenticAMD", AVX512))
    assert MKL_PATH not in os.environ


@needs_mkl
def test_a_trial_that_ends_otherwise_is_made_again(processor, monkeypatch, cache):
    monkeypatch.setattr(tuning, "_MKL_TRIAL", "raise MemoryError")
    take_mkl_path(processor("AuthenticAMD", AVX2))
    assert MKL_PATH not in os.environ
    assert not cache.exists()
    monkeypatch.setattr(tuning, "_MKL_TRIAL", WORKS)
    take_mkl_path(processor("AuthenticAMD", AVX2))
    assert os.environ[MKL_PATH] == "5"


@needs_mkl
def test_a_cache_that_cannot_be_written(processor, cache):
    cache.parent.mkdir()
    cache.write_text("a file, no folder")
    take_mkl_path(processor("AuthenticAMD", AVX2))
    assert os.environ[MKL_PATH] == "5"


@needs_mkl
def test_mkl_computes_by_the_path_of_this_machine(monkeypatch):
    """The trial itself; on processors of Intel and without AVX2 there is none."""
    monkeypatch.undo()
    monkeypatch.delenv(MKL_PATH, raising=False)
    info = Path("/proc/cpuinfo")
    take_mkl_path(info)
    described = tuning._first_processor(info)
    has_avx2 = {"avx2", "fma"} <= set(described.get("flags", "").split())
    is_other = described.get("vendor_id", "GenuineIntel") != "GenuineIntel"
    assert (MKL_PATH in os.environ) == (has_avx2 and is_other)


@pytest.mark.parametrize("words", [["zoo"], ["data", "list", "--help"], ["train", "nothing.yaml"]])
def test_each_command_prepares_its_process_and_an_import_does_not(words, monkeypatch):
    calls = []
    monkeypatch.setattr(tuning, "take_mkl_path", lambda: calls.append("mkl"))
    monkeypatch.setattr(tuning, "keep_freed_memory", lambda: calls.append("memory"))
    importlib.reload(paddlevideo_fast)
    assert calls == []
    with contextlib.suppress(SystemExit):
        main(words)
    assert calls[:2] == ["mkl", "memory"]
