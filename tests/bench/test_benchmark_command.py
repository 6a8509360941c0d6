"""`tools/benchmark.py` finds its benchmarks, and tells wrong input in one message."""

from __future__ import annotations

import pytest


@pytest.fixture
def benchmark(command):
    return command("benchmark")


def test_every_benchmark_has_a_module_with_help(benchmark, capsys):
    for name in benchmark.BENCHMARKS:
        with pytest.raises(SystemExit) as ended:
            benchmark.main([name, "--help"])
        assert ended.value.code == 0
        assert f"tools/benchmark.py {name}" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused(benchmark, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["teleport"])
    assert ended.value.code == 2
    assert "shift" in capsys.readouterr().err


def test_a_config_that_is_missing_is_one_message(benchmark, capsys):
    assert benchmark.main(["train", "-c", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
