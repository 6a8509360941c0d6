"""Readers of videos to compare the default one with."""
