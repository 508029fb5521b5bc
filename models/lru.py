"""A dictionary with room for so many entries: the least recently used one makes room."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class LruDict(OrderedDict[_K, _V]):
    """Drops its least recently used entry when one more than `max_len` is set.

    Setting an entry and `use` count as use; `in`, `get` and `[]` do not. Iteration begins with the
    least recently used.

    Args:
        max_len: the most entries that are kept, at least 1.
    """

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self._max_len = max_len

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_len:
            self.popitem(last=False)

    def use(self, key: _K) -> _V | None:
        """Return the value and mark it as the most recently used; None if there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
