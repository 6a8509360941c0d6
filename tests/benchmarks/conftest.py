"""The command line of tools/benchmark.py, and configs whose runs take seconds."""

import json

import pytest

from tests.support.tools import command, config  # noqa: F401


@pytest.fixture
def measure(command, capfd):  # noqa: F811
    """`measure("shift", …)`: the values that the command prints with --json."""

    def run(*arguments):
        assert command("benchmark").main([*map(str, arguments), "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    return run
