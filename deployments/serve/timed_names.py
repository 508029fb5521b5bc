"""Keeps names for a while: for this process those of avoided replicas and full deployments.

This process avoids replicas that it has just lost, or that refused it. A replica that hangs, or
that this process alone cannot reach, loses its sessions. It looks emptier with each, and would be
chosen again. Each gets another chance after a while.

A deployment is full if a replica has lately said so. Where a lease is waited for in vain and nobody
is full, nobody is there. Each replica starts, is lost or does not answer. Serve's handles do not
tell the two apart.

Serve's request router may run in a thread of its own. One thread adds names, any may read them.
Serve pickles the request router's module by value, and an object in it would be copied as well. The
request router would hear nothing. So functions return the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

AVOID_S = 30.0  # a process that is gone comes back under another name
# While a request waits, Serve asks full replicas again after half a second at most. It waits a
# second for an answer, so this outlasts two that were late.
FULL_S = 3.5
MAX_KEPT = 1024


class TimedNames:
    """Names, each until its time is over, and the newest `MAX_KEPT` at most.

    Args:
        for_s: how long each is kept, where nothing else is said.
        clock: seconds, monotonic.
    """

    def __init__(self, for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._for_s, self._clock = for_s, clock
        self._ends_s: dict[str, float] = {}  # replaced, never changed: another thread may read it

    def add(self, name: str, for_s: float | None = None) -> None:
        """Keep a name from now on; "" is none."""
        if name:
            now_s = self._clock()
            others = [(n, end) for n, end in self._ends_s.items() if end > now_s and n != name]
            end_s = now_s + (self._for_s if for_s is None else for_s)
            self._ends_s = dict([*others[1 - MAX_KEPT :], (name, end_s)])

    def names(self) -> Mapping[str, float]:
        """Return those that are kept now, with the seconds that each has left."""
        now_s = self._clock()
        return {name: end_s - now_s for name, end_s in self._ends_s.items() if end_s > now_s}


_avoided, _full = TimedNames(AVOID_S), TimedNames(FULL_S)


def avoided() -> TimedNames:
    """Return the replicas that this process avoids: no choice for its next lease."""
    return _avoided


def full() -> TimedNames:
    """Return the deployments of which a replica has lately said that it is full."""
    return _full
