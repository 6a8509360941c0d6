"""Networks that learn from other networks."""
