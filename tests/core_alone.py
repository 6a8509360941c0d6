"""Runs the tests of the core in a copy of this tree without extensions/, sources/, jobs/ and apps/.

    python tests/core_alone.py [ARGUMENT OF PYTEST ...]        or        make test-core

Left out are tests that use an annex: those whose file imports one, those with the marker `annex`, and those
that read from a store. The tools of the whole tree make the data sets. The exit code is the one of pytest.
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

from tests.support.tiers import ANNEXES, WHOLE_TREE  # noqa: E402

FOLDERS = "config decode distributed engine integration io loader metrics modeling numerics schedule solver"
COPIED = ("paddlevideo_fast", "tests", "configs", "tools", "pyproject.toml", "setup.py", "README.md", "data")


def main(arguments: list[str]) -> int:
    """Copies the tree, takes the annexes out, and runs pytest there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "core")
        copy.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "motion")
                )
            else:
                shutil.copy(ROOT / name, copy / name)
        for name in ANNEXES:
            shutil.rmtree(copy / "paddlevideo_fast" / name)
        tests = [f"tests/{name}" for name in FOLDERS.split()]
        chosen = ["-n", "2", "-m", "not slow and not annex and not store", *arguments, *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy), WHOLE_TREE: str(ROOT)}
        command = [sys.executable, "-m", "pytest", "-q", *chosen]
        return subprocess.run(command, cwd=copy, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
