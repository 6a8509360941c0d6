"""Measurements beside the toolkit: what is measured against what; `tools/benchmark.py` starts them."""
