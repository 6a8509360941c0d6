"""Runs, for tests of whole trainings along tracks."""

from tests.support.runs import *  # noqa: F403  fixtures
