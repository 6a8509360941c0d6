"""Numeric precision of a step as an object whose plain form does nothing."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict


class Precision:
    """Full precision (float32): no casts, no loss scaling."""

    def forward_context(self) -> ContextManager[Any]:
        """Wraps the forward pass and the loss."""
        return contextlib.nullcontext()

    def backward(self, loss: Any) -> None:
        """Back-propagates a scalar loss."""
        loss.backward()

    def optimizer_step(self, optimizer: Any) -> None:
        """Applies the gathered gradients and clears them."""
        optimizer.step()
        optimizer.clear_grad()

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint must hold (a loss scaler's state); nothing here."""
        return {}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        if state:
            raise ValueError(f"full precision keeps no state, got {sorted(state)}")
