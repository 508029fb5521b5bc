"""Holds back the first step of drafts for those that are asked for at the same moment.

Sessions that were verified together ask for their next drafts together, one shortly after the
other. A step that begins with the first of them leaves out the rest, who end a step later. The next
pass of the target waits for them.
"""

from __future__ import annotations

_LONGEST = 0.5  # part of a step that the first draft may be held back
_SILENCE = 0.25  # part of a step in which nobody came
_MOST_SKIPPED = 64  # groups that begin at once after one that was waited for in vain
_REGROUPED = 16  # groups until more are waited for than came before the first step


class Gathering:
    """Decides how long a group of drafts waits for more. It has no clock of its own."""

    def __init__(self) -> None:
        self._num_expected = 0  # drafts that are waited for
        self._most = 0  # drafts that the group had at once so far
        self._num_held: int | None = None  # drafts when it began to wait; None: it has not
        self._num_met = 0  # drafts of the newest group that waited, when its first step began
        self._num_groups = 0
        self._first_s = self._newest_s = 0.0  # when the first and the newest came
        self._has_begun = True  # its first step has
        self._num_skipped = 0  # further groups that begin at once
        self._skip = 1  # groups that do so when one was waited for in vain

    def note_asked(self, num_drafts: int, now_s: float) -> None:
        """Note that a draft is asked for, which makes `num_drafts` that are under way."""
        if num_drafts == 1:
            self._begin_group(now_s)
        self._most = max(self._most, num_drafts)
        self._newest_s = now_s

    def wait_s(self, step_s: float, now_s: float) -> float:
        """Return how long the next step still waits; 0: it begins now.

        Args:
            step_s: that it takes.
            now_s: the time.
        """
        if self._has_begun or self._most >= self._num_expected or self._num_skipped > 0:
            return 0.0
        until_s = min(self._first_s + _LONGEST * step_s, self._newest_s + _SILENCE * step_s)
        wait_s = max(0.0, until_s - now_s)
        if wait_s > 0.0 and self._num_held is None:
            self._num_held = self._most
        return wait_s

    def note_step(self) -> None:
        """Note that a step begins."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._num_held is None:
            self._num_skipped = max(0, self._num_skipped - 1)
        elif self._most > self._num_held:
            self._skip, self._num_met = 1, self._most
        else:
            self._num_skipped = self._skip
            self._skip = min(2 * self._skip, _MOST_SKIPPED)

    def _begin_group(self, now_s: float) -> None:
        """Expect as many as the group before had, or as came in time for its first step."""
        self._num_groups += 1
        has_met = self._num_held is not None and self._num_met > 0
        is_settled = has_met and self._num_groups % _REGROUPED > 0
        self._num_expected = self._num_met if is_settled else self._most
        self._most, self._num_held, self._num_met = 0, None, 0
        self._first_s, self._has_begun = now_s, False
