"""The list of built-in configs."""
