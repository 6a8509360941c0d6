"""Which parameters train under which rule: a pure function of their names and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters under one rule.

    Attributes:
        names: structured names, in the model's order.
        decay: weight decay applies.
        lr_multiplier: factor on the learning rate.
    """

    names: Tuple[str, ...]
    decay: bool
    lr_multiplier: float


def group_parameters(
    shapes: Mapping[str, Sequence[int]],
    lr_multipliers: Mapping[str, float],
    decay_one_dimensional: bool = False,
    no_decay_words: Sequence[str] = (),
) -> List[ParameterGroup]:
    """Puts each parameter into exactly one group.

    Args:
        shapes: structured name to shape.
        lr_multipliers: name, or start of names up to a dot ("head.fc"), to factor; the longest that fits
            wins, no entry means 1.
        decay_one_dimensional: weight decay also on biases and batch norms (all parameters of one dimension).
        no_decay_words: no weight decay where one of them is in the name.

    Returns:
        Groups in the order of their first parameters.

    Raises:
        KeyError: an entry of `lr_multipliers` fits no parameter; the argument is the entry.
    """
    for key in lr_multipliers:
        if not any(_covers(key, name) for name in shapes):
            raise KeyError(key)
    members: Dict[Tuple[bool, float], List[str]] = {}
    for name, shape in shapes.items():
        decay = (len(shape) > 1 or decay_one_dimensional) and not any(word in name for word in no_decay_words)
        fitting = [key for key in lr_multipliers if _covers(key, name)]
        factor = lr_multipliers[max(fitting, key=len)] if fitting else 1.0
        members.setdefault((decay, float(factor)), []).append(name)
    return [ParameterGroup(tuple(names), *rule) for rule, names in members.items()]


def _covers(key: str, name: str) -> bool:
    return name == key or name.startswith(f"{key}.")
