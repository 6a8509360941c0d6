"""Clips decoded, resampled and jittered by NVIDIA DALI, chosen and counted by our own sampler."""

from paddlevideo_fast.loader.dali.loader import DaliLoader, DaliOptions
