"""Threads of Paddle's operators that have nothing to compute sleep soon, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddlevideo_fast.extensions.cpu.tuning import let_idle_threads_sleep

_CHILD = """
import ctypes, sys
from pathlib import Path
from paddlevideo_fast.config.startup import prepare_process
prepare_process()
import paddle
library = Path(paddle.__file__).parent / "libs" / "libiomp5.so"
print(ctypes.CDLL(str(library)).kmp_get_blocktime() if library.exists() else "none")
"""


_VARIABLES = ("KMP_BLOCKTIME", "OMP_WAIT_POLICY")


@pytest.mark.parametrize("given", [{"KMP_BLOCKTIME": "200"}, {"OMP_WAIT_POLICY": "ACTIVE"}, {}])
def test_the_variables_of_the_user_stay(monkeypatch, given):
    for name in _VARIABLES:
        monkeypatch.setenv(name, given.get(name, ""))  # ends with the test
        if name not in given:
            del os.environ[name]
    let_idle_threads_sleep()
    expected = given or {"KMP_BLOCKTIME": "1"}
    assert {name: os.environ[name] for name in _VARIABLES if name in os.environ} == expected


@pytest.mark.smoke
def test_the_library_of_paddle_reads_it():
    variables = {key: value for key, value in os.environ.items() if key not in _VARIABLES}
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        env={**variables, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    value = done.stdout.split()[-1]
    if value == "none":
        pytest.skip("this Paddle has no OpenMP library of Intel")
    assert value == "1"
