"""Training as a static graph."""
