"""The tiers of the suite: what a test touches, and that one without `slow` is quick.

`tests/conftest.py` takes the hooks from here. Markers of what a test touches come from the fixtures that it
uses and from what its file imports, so that nobody has to write them and none is wrong. In a copy without
`extensions/`, `sources/`, `jobs/` and `apps/`, where `tests/core_alone.py` runs the tests of the core, files
that import one of them are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

# Marker -> beginnings of modules that a file imports, and fixtures.
_TOUCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "video": (
        ("av", "paddlevideo_fast.decode", "tests.support.numbered_clips", "tests.support.exact_corpus"),
        ("make_clip", "motion_dataset", "broken_videos", "real_clips_dir"),
    ),
    "network": (("paddle", "paddlevideo_fast.modeling"), ()),
    "process": (
        ("subprocess", "multiprocessing", "tests.support.launching", "tests.support.dask_cluster"),
        ("template", "run_script"),
    ),
    "store": (("tests.support.stores",), ("http_store", "s3_store")),
    "browser": (("tests.support.browser",), ()),
}
PACKAGE = Path(__file__).resolve().parents[2] / "paddlevideo_fast"
WHOLE_TREE = "PADDLEVIDEO_FAST_WHOLE_TREE"  # in the tests of the core alone: the tree with the annexes
ANNEXES = ("extensions", "sources", "jobs", "apps")
_OWN = rf"paddlevideo_fast\.(?:{'|'.join(ANNEXES)})"
_SUPPORT = r"benchmarks|tests\.support\.(?:stores|fresh_stores|dali_codecs|exact_corpus)"
_USES_ANNEX = re.compile(rf"^\s*(?:from|import) (?:{_OWN}|{_SUPPORT})", re.MULTILINE)
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out a file that imports an annex where there is none."""
    if any((PACKAGE / name).is_dir() for name in ANNEXES) or collection_path.suffix != ".py":
        return None
    return bool(_USES_ANNEX.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the flag that bounds the CPU time of a test."""
    text = "fail a test without `slow` that takes more CPU time than this, its processes included"
    parser.addoption("--max-cpu-sec", type=float, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers of `_TOUCHES`."""
    for name, (modules, _) in _TOUCHES.items():
        config.addinivalue_line("markers", f"{name}: set by itself where a test uses {', '.join(modules)}")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Marks each test with what it touches."""
    of_files: dict[ModuleType, set[str]] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if item.module not in of_files:
            of_files[item.module] = _imported(item.module)
        for name, (modules, fixtures) in _TOUCHES.items():
            begins = tuple(f"{module}." for module in modules)
            imports = any(f"{one}.".startswith(begins) for one in of_files[item.module])
            if imports or set(fixtures) & set(item.fixturenames):
                item.add_marker(name)


def _imported(module: ModuleType) -> set[str]:
    """Returns the names of the modules that a file has imported, or has imported something of."""
    return {
        value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        for value in vars(module).values()
    }


def _cpu_sec() -> float:
    """Returns the CPU time that this process and its children have taken so far."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a child has ended meanwhile
            for pid in (task / "children").read_text().split():
                # user, system and those of its ended children, behind the name in parentheses
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return sum(os.times()[:4]) + ticks / _TICKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that has no marker `slow` and takes more CPU time than `--max-cpu-sec` allows."""
    limit = item.config.getoption("--max-cpu-sec")
    if limit is None or item.get_closest_marker("slow"):
        return (yield)
    before = _cpu_sec()
    result = yield
    used = _cpu_sec() - before
    # Beside other work the same test takes up to twice the CPU time, and this suite runs two at a time.
    if used > limit * (2 if os.getloadavg()[0] > (os.cpu_count() or 1) else 1):
        pytest.fail(f"took {used:.1f} s of CPU time, more than {limit:g}: make it cheaper or mark it slow")
    return result
