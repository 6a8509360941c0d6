"""EfficientNet-Lite with the temporal shift."""
