"""Ends all ranks of a run when one fails or dies."""
