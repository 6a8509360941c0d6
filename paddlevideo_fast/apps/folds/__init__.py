"""A config trained once for each fold of a list."""
