"""Weights of other toolkits."""
