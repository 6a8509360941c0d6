"""Numbered clips, corpora and helpers that tests of several folders use."""
