"""The mean of the weights of checkpoints."""
