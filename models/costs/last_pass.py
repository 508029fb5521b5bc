"""When an engine's last pass ran, and what that leaves unknown of the messages taken after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

_TAKEN_WITHIN_S = 0.002  # of a pass's end: its replies are written and the mailbox is looked into


@dataclass(frozen=True, slots=True)
class LastPass:
    """From and until when it ran. Messages are taken between passes, not when they come."""

    started_s: float = -math.inf
    ended_s: float = -math.inf

    def may_have_delayed(self, taken_s: float) -> bool:
        """Whether a message taken then may have come while the pass ran."""
        return taken_s <= self.ended_s + _TAKEN_WITHIN_S
