"""Serve's choice of a replica for a lease, with a limit on how long a replica may take to answer.

Serve waits without limit for the replica it has chosen to accept or refuse a request. A replica
whose process is stopped does neither, and it goes on being chosen. Serve keeps the last queue
length that it knows. The replica looks emptier than all others as its sessions are lost one by one.
Here a choice that has not answered within `ANSWER_LIMIT_S` counts as unavailable. Serve then
forgets its queue length, so it is no choice until it answers a probe. Serve chooses again for the
same request, which keeps its place in the queue. A replica that this process avoids (`avoided`) is
chosen only where no other has room. A request with a `prefix_key` first tries the replica that
texts of that beginning go to (`nearest`). It does so while that one is not fuller than others.

Ray calls this in the process that holds the handle, in one event loop. The interface is
Ray's alpha (`ray.serve.request_router`); Ray's version is pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any, cast

from ray.exceptions import ActorUnavailableError
from ray.serve.request_router import PendingRequest, RunningReplica

from deployments.serve.nearest import has_room, nearest
from deployments.serve.private import power_of_two_choices
from deployments.serve.timed_names import avoided, full
from models.protocol.leases import LeaseRequest

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

    async def get_queue_len(self, *, deadline_s: float) -> int:
        """See `RunningReplica.get_queue_len`; while requests wait, Serve asks all full replicas."""
        length = await super().get_queue_len(deadline_s=deadline_s)
        _note_length(self, length)
        return length


def _note_length(replica: RunningReplica, length: int) -> None:
    if length >= replica.max_ongoing_requests:
        full().add(replica.replica_id.deployment_id.name)


_PowerOfTwoChoices: Any = power_of_two_choices()


class LeaseRouter(_PowerOfTwoChoices):
    """The request router of deployments whose requests are leases."""

    def create_replica_wrapper(self, replica_info: Any) -> RunningReplica:
        """See `RequestRouter.create_replica_wrapper`."""
        return LeaseReplica(replica_info)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter.choose_replicas`; the nearest is asked before any other."""
        others = await super().choose_replicas(candidate_replicas, pending_request)
        key = _prefix_key(pending_request)
        preferred = self._preferred(key) if key else None
        names = avoided().names()
        # Who has room and answers is better than nobody, once all others are full.
        last = [one for name, one in self.curr_replicas.items() if name.unique_id in names]
        first = [] if preferred is None else [[preferred]]
        return [*first, *others, *([last] if last else [])]

    def on_new_queue_len_info(self, replica_id: Any, num_ongoing_requests: int) -> None:
        """See `RequestRouter.on_new_queue_len_info`; a replica that rejects a request says so."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        replica = self.curr_replicas.get(replica_id)
        if replica is not None:
            _note_length(replica, num_ongoing_requests)

    def _preferred(self, prefix_key: str) -> RunningReplica | None:
        """Return the replica that a key prefers, unless it is too full for that."""
        ids = {replica_id.unique_id: replica_id for replica_id in self.curr_replicas}
        avoided_now = avoided().names()
        name = nearest(prefix_key, (one for one in ids if one not in avoided_now))
        # Serve knows a load for some seconds after it was told. An unknown one counts as empty, and
        # leases that are chosen in one instant do not count for each other yet.
        loads = {one: self.replica_queue_len_cache.get(ids[one]) or 0 for one in ids}
        load = loads.pop(name, 0)
        if not loads or not has_room(load, min(loads.values())):
            return None
        return cast("RunningReplica | None", self.curr_replicas.get(ids.get(name)))

    def _get_pending_request_matching_metadata(self, request_metadata: Any = None) -> Any:
        """See `FIFOMixin`: a choice for the sake of a key is for its request, not the oldest."""
        own = self._get_pending_request_matching_internal_request_id(request_metadata)
        return own if _prefix_key(own) else None

    def apply_locality_routing(self, pending_request: PendingRequest | None = None) -> Any:
        """See `LocalityMixin.apply_locality_routing`; without avoided replicas, while others are
        there."""
        closest = super().apply_locality_routing(pending_request)
        names = avoided().names()
        if not names:
            return closest
        everywhere = super().apply_locality_routing()
        return _without(names, closest) or _without(names, everywhere) or closest


def _prefix_key(pending_request: PendingRequest | None) -> str:
    asked = next(iter(pending_request.args), None) if pending_request is not None else None
    return asked.prefix_key if isinstance(asked, LeaseRequest) else ""


def _without(names: Collection[str], replica_ids: Iterable[Any]) -> set[Any]:
    return {one for one in replica_ids if one.unique_id not in names}
