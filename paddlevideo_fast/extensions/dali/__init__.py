"""Clips decoded, resampled and jittered by NVIDIA DALI, chosen and counted by our own sampler."""

import paddlevideo_fast.loader  # it imports this package, so it comes first
