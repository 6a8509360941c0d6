"""Videos in tar shards."""
