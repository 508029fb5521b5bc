"""Serve's choice of a replica for a lease, with a limit on how long a replica may take to answer.

Serve waits without limit for the replica it has chosen to accept or refuse a request. A replica
whose process is stopped does neither, and it goes on being chosen. Serve keeps the last queue
length that it knows. The replica looks emptier than all others as its sessions are lost one by one.
Here a choice that has not answered within `ANSWER_LIMIT_S` counts as unavailable. Serve then
forgets its queue length, so it is no choice until it answers a probe. Serve chooses again for the
same request, which keeps its place in the queue. A replica that this process avoids (`avoided`) is
chosen only where no other has room. A request with a `prefix_key` first tries the replica that
texts of that beginning go to (`nearest`). It does so while that one is not fuller than others.
Where one of the replicas is a spare, all requests first try the oldest.

Ray calls this in the process that holds the handle, in one event loop. The interface is
Ray's alpha (`ray.serve.request_router`); Ray's version is pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from ray.exceptions import ActorUnavailableError
from ray.serve.request_router import PendingRequest, RunningReplica

from deployments.serve.nearest import READY_S, has_room, nearest
from deployments.serve.private import power_of_two_choices
from deployments.serve.timed_names import avoided, full
from models.protocol.leases import LeaseRequest

# Accepting takes milliseconds, on an overloaded laptop tenths; a longer wait would cost each
# session that meets a stopped replica a noticeable pause, a shorter one doubles leases for nothing.
ANSWER_LIMIT_S = 3.0


class LeaseReplica(RunningReplica):
    """A replica as the request router sees it: it accepts or refuses in time, or is unavailable.

    Attributes:
        known_length: its queue length by its last answer; None: it is not known to answer.
    """

    known_length: int | None = None

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
        """See `RunningReplica.get_queue_len`; while requests wait, Serve asks all full replicas.

        One that has a spare need not be asked: it comes first however full it is. Where it is busy,
        its answer would come late, and a lease would go to the spare.
        """
        known = self.known_length
        if self.ready_s is not None and known is not None and known < self.max_ongoing_requests:
            return known
        length = await super().get_queue_len(deadline_s=deadline_s)
        self.note_length(length)
        return length

    @property
    def ready_s(self) -> float | None:
        """When it became ready, if it is one of two of which the later is a spare."""
        ready_s: float | None = self.replica_metadata.get(READY_S)
        return ready_s

    def note_length(self, length: int) -> None:
        """Note the number of requests that it has taken, by its own word."""
        self.known_length = length
        if length >= self.max_ongoing_requests:
            full().add(self.replica_id.deployment_id.name)


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
        preferred = self._preferred(_prefix_key(pending_request))
        names = avoided().names()
        # Who has room and answers is better than nobody, once all others are full.
        last = [one for name, one in self.curr_replicas.items() if name.unique_id in names]
        first = [] if preferred is None else [[preferred]]
        return [*first, *others, *([last] if last else [])]

    def on_new_queue_len_info(self, replica_id: Any, num_ongoing_requests: int) -> None:
        """See `RequestRouter.on_new_queue_len_info`; a replica that rejects a request says so."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        replica = self.curr_replicas.get(replica_id)
        if isinstance(replica, LeaseReplica):
            replica.note_length(num_ongoing_requests)

    def on_replica_actor_unavailable(self, replica_id: Any) -> None:
        """See `RequestRouter.on_replica_actor_unavailable`."""
        super().on_replica_actor_unavailable(replica_id)
        replica = self.curr_replicas.get(replica_id)
        if isinstance(replica, LeaseReplica):
            replica.known_length = None

    def _preferred(self, prefix_key: str) -> RunningReplica | None:
        """Return the replica to ask before any other, if there is one."""
        ids = {replica_id.unique_id: replica_id for replica_id in self.curr_replicas}
        present = [one for one in ids if one not in avoided().names()]
        replicas = [self.curr_replicas[ids[one]] for one in present]
        filled = [one for one in replicas if one.ready_s is not None]
        if filled:
            return cast("RunningReplica", min(filled, key=lambda one: one.ready_s))
        name = nearest(prefix_key, present) if prefix_key else ""
        if not name or not self._has_room(name, ids):
            return None
        return cast("RunningReplica", self.curr_replicas[ids[name]])

    def _has_room(self, name: str, ids: Mapping[str, Any]) -> bool:
        """Return whether a replica is not much fuller than others."""
        # Serve knows a load for some seconds after it was told. An unknown one counts as empty, and
        # leases that are chosen in one instant do not count for each other yet.
        loads = {one: self.replica_queue_len_cache.get(ids[one]) or 0 for one in ids}
        load = loads.pop(name, 0)
        return bool(loads) and has_room(load, min(loads.values()))

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
