"""Clips decoded, resampled and jittered by NVIDIA DALI, chosen and counted by our own sampler."""
