"""Paddle's profiler over some steps of a run."""
