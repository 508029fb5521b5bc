"""The leases of one replica: which sessions hold one, which are idle, and which leases have ended.

A session has one lease at a time. It ends in one of four ways:

    release       its holder let go            the session is freed
    a newer one   the same session, again      the holder of the old one hears of it by `ended`
    idling        nothing came for too long    both
    no renewal    its holder is stopped, or cut off, so it says no more that it wants the lease

Freed sessions are in `take_freed` until they are taken. Ended leases are in `ended` until they are
acknowledged, because the answer that reports them may be lost. Apart from `end_idle`, every method
may be called from any thread. Knows neither links nor engines.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LeaseKey = tuple[str, int]  # session id, lease id

_SWEEP_PERIOD_S = 1.0  # idle sessions are looked for this often
RENEWAL_S = 3.0  # between two renewals by a holder
_UNRENEWED_S = 5 * RENEWAL_S
_LATE = 5.0  # times its period


@dataclass(slots=True)
class _Lease:
    lease_id: int
    last_seen_s: float
    has_spoken: bool = False
    renewed_s: float = math.inf  # when its holder last wanted it; infinite: it never said


class LeaseBook:
    """Leases by session.

    Args:
        idle_timeout_s: a lease whose session is silent for longer ends.
        first_message_s: a lease of whose session nothing was ever seen ends after that.
        idle_s: seconds since work for a session ended, where work for it counts as a sign of life
            too; sessions without an entry have none.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        idle_timeout_s: float,
        first_message_s: float = math.inf,
        idle_s: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._first_message_s = min(first_message_s, idle_timeout_s)
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self.num_granted = 0  # since the start
        self._freed: list[str] = []
        self._ended: dict[LeaseKey, None] = {}  # in order
        self._swept_s = -math.inf
        self.sweep_period_s = min(_SWEEP_PERIOD_S, idle_timeout_s / 2)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, session_id: str) -> int:
        """Give a session a lease; returns the lease's id, which `release` takes.

        A lease that the session has ends: its holder would wait for that for ever.
        """
        with self._lock:
            old = self._leases.get(session_id)
            if old is not None:
                self._ended[session_id, old.lease_id] = None
            self.num_granted += 1
            self._leases[session_id] = _Lease(self.num_granted, self._clock())
            return self.num_granted

    def release(self, session_id: str, lease_id: int) -> None:
        """End a lease and free its session, unless the session has a newer lease. Idempotent."""
        with self._lock:
            lease = self._leases.get(session_id)
            if lease is not None and lease.lease_id == lease_id:
                del self._leases[session_id]
                self._freed.append(session_id)

    def touch(self, session_ids: Iterable[str]) -> None:
        """Something was seen of these sessions just now; those without a lease are passed over."""
        now_s = self._clock()
        for session_id in session_ids:
            lease = self._leases.get(session_id)
            if lease is not None:
                lease.last_seen_s = now_s
                lease.has_spoken = True

    def renew(self, session_ids: Iterable[str]) -> None:
        """Note that the holder of these sessions' leases still wants them."""
        now_s = self._clock()
        for session_id in session_ids:
            lease = self._leases.get(session_id)
            if lease is not None:
                lease.renewed_s = now_s

    def end_idle(self) -> list[str]:
        """End the leases that are idle or not renewed, unless that was done just now.

        A sweep that comes late proves nothing: what came meanwhile may not have been read yet.

        Returns:
            The sessions whose leases ended here.
        """
        now_s = self._clock()
        since_s = now_s - self._swept_s
        if since_s < self.sweep_period_s:
            return []
        self._swept_s = now_s
        is_late = since_s > _LATE * self.sweep_period_s
        work_idle_s = self._idle_s()
        idle = []
        with self._lock:
            for session_id, lease in list(self._leases.items()):
                idle_s = now_s - lease.last_seen_s
                limit_s = self._idle_timeout_s if lease.has_spoken else self._first_message_s
                is_idle = min(idle_s, work_idle_s.get(session_id, idle_s)) > limit_s
                if is_idle or (now_s - lease.renewed_s > _UNRENEWED_S and not is_late):
                    del self._leases[session_id]
                    self._freed.append(session_id)
                    self._ended[session_id, lease.lease_id] = None
                    idle.append(session_id)
        return idle

    def take_freed(self) -> list[str]:
        """Sessions that lost their last lease, in order, each once.

        One of them may have been granted another lease since. Its state under the old one must be
        dropped all the same.
        """
        if not self._freed:
            return []
        with self._lock:
            freed, self._freed = self._freed, []
        return freed

    def ended(self) -> list[LeaseKey]:
        """Leases that ended otherwise than by `release` and were not acknowledged yet."""
        with self._lock:
            return list(self._ended)

    def acknowledge(self, leases: Iterable[LeaseKey]) -> None:
        """Drop these from `ended`. Idempotent."""
        with self._lock:
            for lease in leases:
                self._ended.pop(lease, None)
