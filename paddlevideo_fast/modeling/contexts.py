"""Contexts in which a network behaves otherwise for a while, and then as before."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import paddle
from paddle import nn


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Context in which a network is in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


@contextlib.contextmanager
def hooked(hooks: Iterable[Any]) -> Iterator[None]:
    """Context at whose end the hooks of layers are removed."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def showing(replacements: Mapping[nn.Layer, Mapping[str, paddle.Tensor]]) -> Iterator[None]:
    """Context in which layers see these tensors in place of their parameters, which stay registered."""
    try:
        for layer, parameters in replacements.items():
            vars(layer).update(parameters)  # found before the parameters
        yield
    finally:
        for layer, parameters in replacements.items():
            for name in parameters:
                vars(layer).pop(name, None)
