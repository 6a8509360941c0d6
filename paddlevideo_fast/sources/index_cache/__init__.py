"""Indexes of videos in a folder."""
