"""Paths, files and locks."""
