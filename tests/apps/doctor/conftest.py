"""Configs whose runs take seconds, and the command lines of tools/."""

from tests.support.tools import command, config  # noqa: F401
