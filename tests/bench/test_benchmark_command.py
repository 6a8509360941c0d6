"""`tools/benchmark.py` finds its benchmarks, and tells wrong input in one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "benchmark.py"


@pytest.fixture(scope="module")
def command():
    spec = importlib.util.spec_from_file_location("benchmark_command", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_benchmark_has_a_module_with_help(command, capsys):
    for name in command.BENCHMARKS:
        with pytest.raises(SystemExit) as ended:
            command.main([name, "--help"])
        assert ended.value.code == 0
        assert f"tools/benchmark.py {name}" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["teleport"])
    assert ended.value.code == 2
    assert "shift" in capsys.readouterr().err
