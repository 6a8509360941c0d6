"""What data/*.py do: lists and their checks, prepared videos, frames, packed frames, and small data sets."""
