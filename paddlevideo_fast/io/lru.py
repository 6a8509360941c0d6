"""A cache of the values that were used last."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class LRUCache(Generic[V]):
    """The values that were used last, by key. Threads may share it; a copy in a spawned process starts empty.

    Args:
        size: how many values are kept.
        drop: called with each value that makes room for another, or is replaced.
    """

    def __init__(self, size: int, drop: Callable[[V], Any] | None = None) -> None:
        self._size, self._drop = size, drop
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return LRUCache, (self._size, self._drop)

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which is used now; None: it is not here."""
        with contextlib.suppress(KeyError):  # another thread may drop it
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        """Keeps a value, which is used now."""
        dropped = [self._values.pop(key, None)]
        self._values[key] = value
        with contextlib.suppress(KeyError):
            while len(self._values) > self._size:
                dropped.append(self._values.popitem(last=False)[1])
        for each in dropped:
            if each is not None and self._drop is not None:
                self._drop(each)

    def pop(self, key: Hashable) -> V | None:
        """Takes a value out; None: it is not here."""
        return self._values.pop(key, None)

    def clear(self) -> None:
        """Forgets all values, without a call of `drop`."""
        self._values.clear()
