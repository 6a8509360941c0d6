"""Activations that the backward pass computes once more instead of keeping them (gradient checkpointing).

Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers.batch_norm import kept_statistics
from paddlevideo_fast.modeling.stages import Stage

Operators = Callable[[nn.Layer], AbstractContextManager[Any]]

_running: list[nn.Layer] = []


def recompute_stages(
    model: nn.Layer, stages: Sequence[str] | None = None, operators: Operators | None = None
) -> None:
    """Lets a model keep only what enters the layers of some stages, in training, and not what they compute.

    Backward runs these layers once more, one at a time, with the same dropout. Gradients and running
    statistics are the same, bit for bit. Layers that build no graph, as frozen leading ones, run once.

    Args:
        model: a recognizer; its `stages` have the layers.
        stages: their names; None: all.
        operators: the context in which the operators of a layer compute, as `Precision.operators`.

    Raises:
        ConfigError: there is no such stage.
    """
    available: Mapping[str, Stage] = getattr(model, "stages", {})
    unknown = [(number, name) for number, name in enumerate(stages or ()) if name not in available]
    if unknown:
        raise ConfigError(
            [
                f"RUNTIME.recompute.{number}={name}: no such stage; the stages are {', '.join(available)}"
                for number, name in unknown
            ]
        )
    layers = dict(model.named_sublayers())
    for name in available if stages is None else stages:
        for layer in (layers[each] for each in available[name].layers if each in layers):
            layer.forward = partial(_forward, layer, layer.forward, operators or contextlib.nullcontext)


def is_recomputing() -> bool:
    """Whether layers run for the second time, in the backward pass."""
    return bool(_running)


def _forward(layer: nn.Layer, forward: Callable[..., Any], operators: Operators, *inputs: Any) -> Any:
    if not paddle.is_grad_enabled() or not _builds_graph(layer, inputs):
        return forward(*inputs)
    random_state = paddle.get_rng_state()
    passes = 0

    def run(wish: paddle.Tensor) -> Any:
        nonlocal passes
        passes += 1
        if passes == 1:
            return forward(*inputs)
        with operators(layer), kept_statistics(layer), _recomputing(layer, random_state):
            return forward(*inputs)

    # fleet warns at each step where no input wants a gradient, though parameters may: this one does
    wish = paddle.zeros([1])
    wish.stop_gradient = False
    # the other implementation gives no gradients to the parameters of the first layer that trains
    return recompute(run, wish, use_reentrant=False, preserve_rng_state=False)


def _builds_graph(layer: nn.Layer, inputs: Any) -> bool:
    tensors = [each for each in paddle.utils.flatten(list(inputs)) if isinstance(each, paddle.Tensor)]
    return any(not each.stop_gradient for each in (*tensors, *layer.parameters()))


@contextlib.contextmanager
def _recomputing(layer: nn.Layer, random_state: Any) -> Iterator[None]:
    """Context of a second pass: dropout draws what it drew before. Fleet 2.6 cannot do so on CPUs."""
    _running.append(layer)
    state = paddle.get_rng_state()
    paddle.set_rng_state(random_state)
    try:
        yield
    finally:
        paddle.set_rng_state(state)
        _running.pop()
