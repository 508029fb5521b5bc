"""Serve's choice of a replica for a lease, with a limit on how long a replica may take to answer.

Serve waits without limit for the replica it has chosen to accept or refuse a request. A replica
whose process is stopped does neither, and it goes on being chosen. Serve keeps the last queue
length that it knows. The replica looks emptier than all others as its sessions are lost one by one.
Here a choice that has not answered within `ANSWER_LIMIT_S` counts as unavailable. Serve then
forgets its queue length, so it is no choice until it answers a probe. Serve chooses again for the
same request, which keeps its place in the queue. A replica that this process avoids (`avoided`) is
chosen only where there is no other.

Ray calls this in the process that holds the handle, in one event loop. The interface is
Ray's alpha (`ray.serve.request_router`); Ray's version is pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from ray.exceptions import ActorUnavailableError
from ray.serve.request_router import PendingRequest, RunningReplica

from deployments.serve.avoided import avoided
from deployments.serve.private import power_of_two_choices

# Accepting takes milliseconds, on an overloaded laptop tenths; a longer wait would cost each
# session that meets a stopped replica a noticeable pause, a shorter one doubles leases for nothing.
ANSWER_LIMIT_S = 3.0


class LeaseReplica(RunningReplica):
    """A replica as the request router sees it: it accepts or refuses in time, or is unavailable."""

    def try_send_request(self, pr: PendingRequest, with_rejection: bool) -> Any:
        """See `RunningReplica.try_send_request`; the result's `get_rejection_response` raises
        ActorUnavailableError, which Serve handles, after `ANSWER_LIMIT_S`."""
        result: Any = super().try_send_request(pr, with_rejection)
        answer = result.get_rejection_response

        async def answer_in_time() -> Any:
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    return await answer()  # cancels the request when it is cancelled itself
            except TimeoutError:
                reason = f"no answer to a lease within {ANSWER_LIMIT_S:g} s"
                raise ActorUnavailableError(reason, self.actor_id.binary()) from None

        result.get_rejection_response = answer_in_time
        return result


_PowerOfTwoChoices: Any = power_of_two_choices()


class LeaseRouter(_PowerOfTwoChoices):
    """The request router of deployments whose requests are leases."""

    def create_replica_wrapper(self, replica_info: Any) -> RunningReplica:
        """See `RequestRouter.create_replica_wrapper`."""
        return LeaseReplica(replica_info)

    def apply_locality_routing(self, pending_request: PendingRequest | None = None) -> Any:
        """See `LocalityMixin.apply_locality_routing`; without avoided replicas, while others are
        there."""
        nearest = super().apply_locality_routing(pending_request)
        names = avoided.names()
        if not names:
            return nearest
        everywhere = super().apply_locality_routing()
        return _without(names, nearest) or _without(names, everywhere) or nearest


def _without(names: Collection[str], replica_ids: Iterable[Any]) -> set[Any]:
    return {one for one in replica_ids if one.unique_id not in names}
