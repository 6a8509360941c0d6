"""The progress of a training on a terminal."""
