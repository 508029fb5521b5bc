"""The model's states of a session's newest rows, for what drafts by them."""

from __future__ import annotations

import torch
from torch import Tensor


class RowStates:
    """States of rows [first, stop), none to begin with. F is the hidden size."""

    __slots__ = ("_rows", "first", "stop")

    def __init__(self) -> None:
        self.first = self.stop = 0
        self._rows: list[Tensor] = []  # each [n, F]

    def add(self, start: int, states: Tensor) -> None:
        """Add states of rows [start, start + n), [n, F], without a copy.

        Rows from `start` on are replaced; if there is a gap before it, all before it are lost.
        """
        self.truncate(start)
        if self.stop != start:
            self.first, self._rows = start, []
        self._rows.append(states)
        self.stop = start + len(states)

    def truncate(self, stop: int) -> None:
        """Forget rows from `stop` on."""
        while self.stop > max(stop, self.first):
            last = self._rows.pop()
            num_left = max(0, len(last) - (self.stop - stop))
            self.stop -= len(last) - num_left
            if num_left:
                self._rows.append(last[:num_left])

    def drop(self, first: int) -> None:
        """Forget rows before `first`."""
        while self.first < min(first, self.stop):
            oldest = self._rows[0]
            num_dropped = min(first - self.first, len(oldest))
            self.first += num_dropped
            self._rows[:1] = [oldest[num_dropped:]] if num_dropped < len(oldest) else []

    def take(self, first: int, stop: int) -> Tensor:
        """Return states of rows [first, stop), [stop - first, F]; zeros for missing rows.

        One row at least is present.
        """
        held = torch.cat(self._rows) if len(self._rows) > 1 else self._rows[0]
        begin, end = max(first, self.first), min(stop, self.stop)
        if (begin, end) == (first, stop):
            return held[begin - self.first : end - self.first]
        whole = held.new_zeros(stop - first, held.shape[1])
        if begin < end:
            whole[begin - first : end - first] = held[begin - self.first : end - self.first]
        return whole
