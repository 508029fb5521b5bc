"""Measured times of one engine's passes, recorded once and read by all planning.

The engine notes every pass here; the batch window, the prefill budget and the engine's statistics
read it. Plain numbers, no clock of its own.
"""

from __future__ import annotations

import math

from models.costs.running_mean import running_mean
from models.costs.table import CostTable

_TAKEN_WITHIN_S = 0.002  # time after a pass, in which replies are written and the mailbox is read
_MEAN_SHARE = 0.2  # weight of the newest pass in `mean_s`


class PassTimes:
    """The times of an engine's passes, in seconds.

    Attributes:
        by_rows: what a pass takes by the number of its rows.
        mean_s: the running mean of a pass, whatever it holds; None before the first.
        last_began_s: when the last pass began; minus infinity before the first.
        last_ended_s: when it ended.
    """

    def __init__(self) -> None:
        self.by_rows = CostTable()
        self.mean_s: float | None = None
        self.last_began_s = self.last_ended_s = -math.inf

    def note(self, num_rows: int, duration_s: float, now: float) -> None:
        """Take in a pass of `num_rows` rows, at least 1, that took `duration_s` until `now`."""
        self.last_began_s, self.last_ended_s = now - duration_s, now
        self.mean_s = running_mean(self.mean_s, duration_s, _MEAN_SHARE)
        if duration_s > 0.0:  # a clock may be too coarse for a pass
            self.by_rows.observe(num_rows, duration_s)

    def may_have_delayed(self, taken_s: float) -> bool:
        """Returns whether a message taken at `taken_s` may have come while the last pass ran.

        Messages are taken between passes, not when they come.
        """
        return taken_s <= self.last_ended_s + _TAKEN_WITHIN_S
