"""Untrimmed footage: clips from between the spans of a list, and windows."""
