"""The tests. `tests.support` holds what they share, and what benchmarks and tests share."""
