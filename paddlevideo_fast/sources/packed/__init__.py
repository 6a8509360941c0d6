"""Frames of many videos in few files."""
