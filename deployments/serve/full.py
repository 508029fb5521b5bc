"""Deployments whose replicas have lately said that they are full, to tell full ones from none.

Where a lease is waited for in vain and nobody is full, nobody is there. Each replica starts, is
lost or does not answer. Serve's handles do not tell the two apart. Serve's request router may run
in a thread of its own: all methods may be called from any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# While a request waits, Serve asks full replicas again after half a second at most. It waits a
# second for an answer, so this outlasts two that were late.
_KNOWN_S = 3.5


class FullDeployments:
    """Deployments by name, each until its replicas' word is old.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted_s: dict[str, float] = {}

    def note(self, deployment: str) -> None:
        """Note that a replica of a deployment has just said that it is full."""
        self._noted_s[deployment] = self._clock()

    def has(self, deployment: str) -> bool:
        """Return whether one of its replicas has lately said so."""
        return self._clock() - self._noted_s.get(deployment, -_KNOWN_S) < _KNOWN_S


_full = FullDeployments()


def full() -> FullDeployments:
    """Return those of this process. A function for the reason of `avoided.avoided`."""
    return _full
