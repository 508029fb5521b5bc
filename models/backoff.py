"""The pause before the next attempt at something that failed: the same rule in every process."""

from __future__ import annotations

import random
from collections.abc import Callable

Chance = Callable[[], float]  # from 0 to 1

_JITTER = 0.2


def jittered(seconds: float, chance: Chance = random.random) -> float:
    """Return a time that is up to 20% shorter or longer: who failed together must not retry so."""
    return seconds * (1.0 + _JITTER * (2.0 * chance() - 1.0))


class Backoff:
    """Counts failures in a row and says how long to wait before the next attempt.

    Nothing before the first attempt, `first_s` after one failure, then twice the last pause up to
    `longest_s`. Each is up to 20% shorter or longer than that. It does not sleep: a caller with a
    deadline or a stop event waits its own way.

    Args:
        first_s: the pause after the first failure, in seconds.
        longest_s: no pause is longer, but for the 20%.
        chance: decides how much shorter or longer.
    """

    def __init__(self, first_s: float, longest_s: float, chance: Chance = random.random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance
        self._even_s = 0.0  # the pause without its jitter
        self.num_failures = 0
        self.pause_s = 0.0

    def note_failure(self) -> None:
        """Note that an attempt failed: the next pause is longer."""
        even_s = 2 * self._even_s if self.num_failures > 0 else self._first_s
        self._even_s = min(even_s, self._longest_s)
        self.pause_s = jittered(self._even_s, self._chance)
        self.num_failures += 1

    def reset(self) -> None:
        """Note that an attempt succeeded: the next failure is the first again."""
        self.num_failures = 0
        self.pause_s = 0.0
