"""A pool of draft models that turns: the acceptance that a router has learnt becomes wrong."""

from __future__ import annotations

from collections.abc import Sequence

from router.ports import EngineLease, EnginePool


class TurningPool:
    """Implements `router.ports.EnginePool` over several, one after another within a run.

    Args:
        pools: each gives as many leases as any other, the first one first.
    """

    def __init__(self, pools: Sequence[EnginePool]) -> None:
        self._pools = pools
        self._num_leases = self._num_given = 0

    def begin(self, num_leases: int) -> None:
        """Begin a run of so many leases with the first pool; after them the last one goes on."""
        self._num_leases, self._num_given = num_leases, 0

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`."""
        place = len(self._pools) * self._num_given // self._num_leases
        self._num_given += 1
        pool = self._pools[min(place, len(self._pools) - 1)]
        return await pool.lease(session_id, timeout_s=timeout_s)
