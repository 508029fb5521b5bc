"""The pause before the next attempt at something that failed: the same rule in every process."""

from __future__ import annotations


class Backoff:
    """Counts failures in a row and says how long to wait before the next attempt.

    Nothing before the first attempt, `first_s` after one failure, then twice the last pause up to
    `longest_s`. It does not sleep: a caller with a deadline or a stop event waits its own way.

    Args:
        first_s: the pause after the first failure, in seconds.
        longest_s: no pause is longer.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.num_failures = 0
        self.pause_s = 0.0

    def note_failure(self) -> None:
        """Note that an attempt failed: the next pause is longer."""
        pause_s = 2 * self.pause_s if self.num_failures > 0 else self._first_s
        self.pause_s = min(pause_s, self._longest_s)
        self.num_failures += 1

    def reset(self) -> None:
        """Note that an attempt succeeded: the next failure is the first again."""
        self.num_failures = 0
        self.pause_s = 0.0
