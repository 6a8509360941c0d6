"""Predictions over HTTP: videos are read in processes of their own, and requests share batches."""
