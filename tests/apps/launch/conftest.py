"""Whole runs of small networks, which the tests of options have, too."""

from tests.support.runs import *  # noqa: F403  fixtures
