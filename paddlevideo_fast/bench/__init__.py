"""What `tools/benchmark.py` measures."""
