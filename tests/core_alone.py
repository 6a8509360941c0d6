"""Runs the tests of the core in a copy of this tree without extensions/, sources/, jobs/ and apps/.

    python tests/core_alone.py [ARGUMENT OF PYTEST ...]        or        make test-core

Left out are tests that use an annex: those whose file imports one, those with the marker `annex`, and
those that read from a store. The exit code is the one of pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.tiers import ANNEXES  # noqa: E402

FOLDERS = (
    "config",
    "decode",
    "distributed",
    "engine",
    "integration",
    "io",
    "loader",
    "metrics",
    "modeling",
    "schedule",
)
COPIED = ("paddlevideo_fast", "tests", "configs", "tools", "pyproject.toml", "setup.py", "README.md", "data")


def main(arguments: list[str]) -> int:
    """Copies the tree, takes the annexes out, and runs pytest there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "core")
        for name in COPIED:
            source, target = ROOT / name, copy / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "motion"))
            else:
                copy.mkdir(exist_ok=True)
                shutil.copy(source, target)
        for name in ANNEXES:
            shutil.rmtree(copy / "paddlevideo_fast" / name)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "-m",
            "not slow and not annex",
            *arguments,
        ]
        tests = [f"tests/{name}" for name in FOLDERS]
        return subprocess.run(
            [*command, *tests], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
