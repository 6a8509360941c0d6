"""Clips decoded, resampled, jittered and normalised by NVIDIA DALI, chosen and counted by our own sampler."""

from paddlevideo_fast.loader.dali.loader import DaliLoader, DaliOptions, to_tensor

__all__ = ["DaliLoader", "DaliOptions", "to_tensor"]
