"""Serve's choice of a router for a request where one of two is a spare: the older.

Serve's proxies choose, and get this module by value. Its pickle names nothing but Ray, for proxies
need not have this package. The spare gets what comes while the older does not say within 0.1 s that
it has room.
"""

from __future__ import annotations

from typing import Any

from deployments.serve.nearest import READY_S
from deployments.serve.private import power_of_two_choices

PATH = f"{__name__}:OlderFirst"
_PowerOfTwoChoices: Any = power_of_two_choices()


class OlderFirst(_PowerOfTwoChoices):
    """The request router of a deployment with a spare whose requests come from outside."""

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """See `RequestRouter.choose_replicas`; the older is asked before the other."""
        others = await super().choose_replicas(candidate_replicas, pending_request)
        told = [one for one in self.curr_replicas.values() if READY_S in one.replica_metadata]
        older = min(told, key=lambda one: one.replica_metadata[READY_S], default=None)
        return others if older is None else [[older], *others]
