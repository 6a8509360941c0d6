"""How large a network is, and how much it computes."""

from __future__ import annotations

import math
from typing import Any

from paddle import nn

from paddlevideo_fast.modeling.layers.attention import flop_hooks
from paddlevideo_fast.modeling.recompute import is_recomputing
from paddlevideo_fast.modeling.stages import learned_parameters

_CONVOLUTIONS = (nn.Conv2D, nn.Conv3D)


def count_parameters(model: nn.Layer) -> int:
    """The number of parameters, frozen ones included; statistics of batch norms do not count."""
    return sum(parameter.size for parameter in learned_parameters(model).values())


class MacCounter:
    """Counts the multiply-adds of convolutions, linear layers and attention in forward passes.

    Papers call them FLOPs. The counter watches the layers and computes nothing itself. Attention counts
    whatever model it is in, as it has no layer of its own:

        with MacCounter(model) as counter:
            model(clips)
        print(counter.macs / len(clips))

    Use `start` and `stop` where the passes are not in one block. What a backward pass computes once more
    (`RUNTIME.recompute`) does not count.

    A layer that cannot be counted does not end the pass; the error comes when the result is read.
    """

    def __init__(self, model: nn.Layer) -> None:
        self._macs = 0
        self._error: Exception | None = None
        self._model = model
        self._hooks: list[Any] = []

    @property
    def macs(self) -> int:
        """Multiply-adds so far.

        Raises:
            Exception: the first error of counting.
        """
        if self._error is not None:
            raise self._error
        return self._macs

    def start(self) -> MacCounter:
        """Starts counting from 0; returns the counter."""
        self._macs = 0
        for layer in self._model.sublayers():
            if isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
                self._hooks.append(layer.register_forward_post_hook(self._count))
        flop_hooks.append(self._count_product)
        return self

    def stop(self) -> None:
        """Stops counting and removes its hooks from the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._count_product in flop_hooks:
            flop_hooks.remove(self._count_product)

    __enter__ = start

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _count_product(self, num_macs: int) -> None:
        if not is_recomputing():
            self._macs += num_macs

    def _count(self, layer: nn.Layer, inputs: tuple[Any, ...], output: Any) -> None:
        if is_recomputing():
            return
        try:
            shape = layer.weight.shape
            # a convolution has [out, in / groups, *kernel], a product of them per output; a linear [in, out]
            per_output = math.prod(shape[1:]) if isinstance(layer, _CONVOLUTIONS) else shape[0]
            self._macs += per_output * math.prod(output.shape)
        except Exception as error:
            self._error = self._error or error
