"""Predictions of programs: of videos, of lists and of cameras."""
