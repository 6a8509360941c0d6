"""Token merging: a trained ViT computes fewer tokens from layer to layer, in tests and programs."""
