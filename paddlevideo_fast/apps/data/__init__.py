"""Lists and their checks, prepared videos, frames, packed frames, and small data sets."""
