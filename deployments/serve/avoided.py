"""Replicas that this process has just lost, or that refused it: no choice for the next lease.

A replica that hangs, or that this process alone cannot reach, loses its sessions. It looks emptier
with each, and would be chosen again. Each gets another chance after a while. Serve's request router
may run in a thread of its own: all methods may be called from any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

AVOID_S = 30.0  # a process that is gone comes back under another name


class AvoidedReplicas:
    """Names of replicas, each until its time is over.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_s: dict[str, float] = {}

    def add(self, replica: str, for_s: float = AVOID_S) -> None:
        """Avoid a replica from now on; "" is none."""
        if replica:
            now_s = self._clock()
            left = {name: end_s for name, end_s in self._ends_s.copy().items() if end_s > now_s}
            self._ends_s = {**left, replica: now_s + for_s}

    def names(self) -> Collection[str]:
        """Return those that are avoided now."""
        ends_s = self._ends_s
        if not ends_s:
            return ()
        now_s = self._clock()
        return {name for name, end_s in ends_s.items() if end_s > now_s}


_avoided = AvoidedReplicas()


def avoided() -> AvoidedReplicas:
    """Return those of this process.

    A function, because Serve pickles the request router's module by value. An object in it would
    be copied as well: the request router would hear nothing.
    """
    return _avoided
