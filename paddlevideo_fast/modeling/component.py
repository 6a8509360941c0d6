"""Layers that configs build."""

from __future__ import annotations

from typing import Any, Dict, Optional

from paddle import nn

from paddlevideo_fast.registry import Registry


class Parts:
    """Which constructor arguments of a layer are components: the `children` that the config check asks a
    class for.

    `paddle.nn.Layer` has a method of that name, which its instances keep.

    Args:
        registries: argument to the registry that builds it.
    """

    def __init__(self, **registries: Registry) -> None:
        self._registries: Dict[str, Registry] = registries

    def __get__(self, layer: Optional[nn.Layer], owner: type) -> Any:
        if layer is None:
            return self._registries
        return nn.Layer.children.__get__(layer, owner)


class ComponentLayer(nn.Layer):
    """A layer that a registry holds; one with components as arguments overrides `children`."""

    children: Any = Parts()
