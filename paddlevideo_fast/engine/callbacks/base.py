"""The hooks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class Callback:
    """Something that happens around the steps; every hook does nothing unless a subclass says otherwise.

    Hooks run in list order. `fit_end` runs after the last epoch only, `close` always, also after an error.
    """

    def fit_begin(self, trainer: Trainer) -> None:
        """Before the first step; after the state of a resumed run is back."""

    def phase_begin(self, trainer: Trainer) -> None:
        """`trainer.phase` is the new phase."""

    def epoch_begin(self, trainer: Trainer) -> None:
        """Also at the start of a resumed epoch's remaining part."""

    def step_begin(self, trainer: Trainer) -> None:
        """Before the forward pass of an optimizer step."""

    def step_end(self, trainer: Trainer) -> None:
        """After the optimizer step; `trainer.state` counts it already."""

    def epoch_end(self, trainer: Trainer) -> None:
        """`trainer.state.epoch` counts the finished epoch already."""

    def before_evaluation(self, trainer: Trainer) -> None:
        """Puts in place the weights to evaluate."""

    def after_evaluation(self, trainer: Trainer) -> None:
        """Puts back the weights to train; also where an error came before `before_evaluation`."""

    def before_checkpoint(self, trainer: Trainer) -> None:
        """On all ranks, before rank 0 writes the state of the run: makes it the same on all."""

    def phase_end(self, trainer: Trainer) -> None:
        """After the phase's last epoch."""

    def interrupted(self, trainer: Trainer) -> None:
        """A signal asked the run to stop between two steps."""

    def fit_end(self, trainer: Trainer) -> None:
        """After the last epoch."""

    def close(self) -> None:
        """Releases files; also after an error."""

    def state_dict(self) -> Dict[str, Any]:
        """JSON values a checkpoint must hold."""
        return {}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    def tensors(self) -> Dict[str, Any]:
        """Tensors a checkpoint must hold, by the structured name of the parameter they belong to."""
        return {}

    def set_tensors(self, tensors: Dict[str, Any]) -> None:
        """Takes back, as arrays, what `tensors` gave."""
