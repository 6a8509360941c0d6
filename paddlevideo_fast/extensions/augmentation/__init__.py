"""Augmentations of the recipes of transformers."""
