"""Handles of a deployment, as a router has them: Serve's part of a lease.

`LeaseRouter` is the real one, over Ray's own queues, loads and probes. Its calls to replicas are
simulated. So is Serve's loop around it, which sends a request and chooses again if it is rejected.
"""

from __future__ import annotations

import asyncio
import zlib
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from deployments.serve.lease_router import LeaseReplica, LeaseRouter
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process
from models.protocol.messages import LeaseGrant, LeaseRefused, LeaseRequest

_THERE_S, _BACK_S = (0.001, 0.01), (0.0005, 0.003)
_ACTOR = SimpleNamespace(_actor_id=SimpleNamespace(binary=lambda: b"1" * 16))


class _Id(ReplicaID):
    """Hashes alike in every process, for Ray goes through sets of ids."""

    def __hash__(self) -> int:
        return zlib.crc32(self.unique_id.encode())


class _Calls(RunningReplica):
    """Calls to a process, in place of Ray's."""

    process: Process

    async def get_queue_len(self, *, deadline_s: float) -> int:
        """See `RunningReplica.get_queue_len`."""
        await self._reach()
        return self._num_leases()

    def try_send_request(self, pr: PendingRequest, with_rejection: bool) -> Any:
        """See `RunningReplica.try_send_request`; the result has the lease, once there is one."""
        sent = SimpleNamespace(process=self.process, replica_id=self.replica_id, key=None)
        sent.get_rejection_response = lambda: self._admit(sent, pr.args[0].session_id)
        return sent

    async def _reach(self) -> None:
        await asyncio.sleep(self.process.network.rng.uniform(*_THERE_S))
        await self.process.answer()

    def _num_leases(self) -> int:
        process = self.process
        if process.num_leases >= process.places:
            process.network.counts["full"] += 1
            process.network.note(f"{process.name}: is full")
        return process.num_leases

    async def _admit(self, sent: SimpleNamespace, session_id: str) -> tuple[bool, int]:
        """Return whether the call is accepted, and how many the process has then."""
        await self._reach()
        process, network = self.process, self.process.network
        num_leases = self._num_leases()
        is_accepted = num_leases < process.places
        if is_accepted and not network.happens("refused", network.rates.refuse):
            sent.key = process.admit(session_id)
            sent.end = process.ends[sent.key]
        await asyncio.sleep(network.rng.uniform(*_BACK_S))
        return is_accepted, num_leases + is_accepted


class Replica(LeaseReplica, _Calls):
    """The real `LeaseReplica`, over simulated calls."""

    def __init__(self, kind: str, process: Process) -> None:
        self.process = process
        info: Any = SimpleNamespace(
            replica_id=_Id(process.name, DeploymentID(kind)),
            node_id="node",
            availability_zone=None,
            max_ongoing_requests=process.places,
            multiplexed_model_ids=(),
            is_cross_language=False,
            get_actor_handle=lambda: _ACTOR,
            replica_metadata=process.metadata,
        )
        super().__init__(info)


class _Router(LeaseRouter):
    """The real `LeaseRouter`, whose probes have an order."""

    async def _probe_queue_lens(self, replicas: list[Any], backoff_index: int) -> list[Any]:
        found = await super()._probe_queue_lens(replicas, backoff_index)
        return sorted(found, key=lambda one: replicas.index(one[0]))  # Ray's is that of a set


class Handle:
    """A `DeploymentHandle`, as far as `ServePool` needs one, with a request router of its own.

    Args:
        network: of the schedule.
        deployment_name: its kind.
    """

    def __init__(self, network: Network, deployment_name: str) -> None:
        self.network, self.deployment_name = network, deployment_name
        self.streams: list[Stream] = []
        self.router: Any = _Router(
            deployment_id=DeploymentID(deployment_name),
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
            get_curr_time_s=network.now,
        )

    def options(self, **words: Any) -> Handle:
        """See `DeploymentHandle.options`."""
        return self

    def remote(self, request: LeaseRequest) -> Stream:
        """See `DeploymentHandle.remote`."""
        self.streams.append(Stream(self, request))
        return self.streams[-1]


class Stream:
    """A lease's streaming call: a `DeploymentResponseGenerator`."""

    def __init__(self, handle: Handle, request: LeaseRequest) -> None:
        self._handle, self._network = handle, handle.network
        self._request = request
        self.name = f"{request.session_id} {len(handle.streams)}"
        self._lease = (handle.deployment_name, request.session_id)
        self._sent: Any = SimpleNamespace(key=None)
        self._end: asyncio.Future[str] | None = None
        self.is_cancelled = False

    async def __anext__(self) -> LeaseGrant | LeaseRefused:
        """Return the grant; later wait for the lease's end."""
        if self._end is not None:
            return await self._ended(self._end)
        await self._send()
        process: Process = self._sent.process
        if self._sent.key is None:
            if self._network.rng.random() < 0.5:
                raise ActorUnavailableError("a random refusal", b"1" * 16)
            return LeaseRefused(replica=process.name, reason="a random refusal")
        self._end = self._sent.end
        self._end.add_done_callback(self._note_end)
        self._network.num_granted[self._lease] += 1
        self._network.note(f"{process.name}: leased to {self._request.session_id}")
        return process.grant

    async def _send(self) -> None:
        """Do as Serve's `AsyncioRouter.route_and_send_request`: choose, send, or choose again."""
        router, now_s = self._handle.router, self._network.now()
        metadata: Any = SimpleNamespace(internal_request_id=self.name, multiplexed_model_id="")
        asked = PendingRequest([self._request], {}, metadata, created_at=now_s)
        is_accepted = is_retry = False
        while not is_accepted:
            replica = await router._choose_replica_for_request(asked, is_retry=is_retry)
            self._sent = replica.try_send_request(asked, True)
            router.on_send_request(replica.replica_id)
            try:
                is_accepted, num_leases = await self._sent.get_rejection_response()
                router.on_new_queue_len_info(replica.replica_id, num_leases)
            except ActorDiedError:
                router.on_replica_actor_died(replica.replica_id)
            except ActorUnavailableError:
                self._let_go()
                router.on_replica_actor_unavailable(replica.replica_id)
            is_retry = True

    async def _ended(self, end: asyncio.Future[str]) -> LeaseGrant:
        reason = await asyncio.shield(end)
        await asyncio.sleep(self._network.rng.uniform(0.001, 0.05))
        if reason == "ended":
            raise StopAsyncIteration
        raise ActorDiedError

    def _note_end(self, end: asyncio.Future[str]) -> None:
        """Count a lease that the replica ended itself no more; the holder may hear of it later."""
        if not end.cancelled() and end.result() == "ended":
            self._network.num_granted[self._lease] -= 1

    def cancel(self) -> None:
        """See `DeploymentResponseGenerator.cancel`; it may not arrive."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._let_go()

    def _let_go(self) -> None:
        sent, network = self._sent, self._network
        if sent.key is None:
            return
        if sent.process.has_ended(sent.key):  # and will not tell of it any more
            network.num_granted[self._lease] -= 1
        self._handle.router.decrement_queue_len_cache(sent.replica_id)
        if not network.happens("end of a lease lost", network.rates.forget):
            network.later(network.rng.uniform(0.001, 0.01), sent.process.release, sent.key)
