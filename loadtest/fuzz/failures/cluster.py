"""Replicas, as routers reach them: Serve's part of a lease, and the routers' links.

`deployments.ingress.pools.ServePool` is the real one; a handle, a stream and a connection are what
it needs of Ray and ZMQ. A deployment replaces what dies by an empty replica, after a while, maybe
at the same address.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.link.client import LinkChannel
from deployments.link.leases import LeaseKey
from deployments.serve.lease_router import ANSWER_LIMIT_S
from deployments.serve.timed_names import TimedNames
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process
from models.protocol.messages import Endpoint, LeaseGrant, LeaseRefused, LeaseRequest

Make = Callable[[str, str, int], Process]  # address, name, epoch


class Deployment:
    """All replicas of one kind.

    Args:
        network: of the schedule.
        kind: "target", "draft" or "constraint".
        make: makes a replica's process.
        num_replicas: how many there are; each dead one is replaced.
    """

    def __init__(self, network: Network, kind: str, make: Make, num_replicas: int) -> None:
        self.network, self.kind = network, kind
        self.processes: list[Process] = []  # in the order they began; those that are gone too
        self.addresses: dict[str, Process] = {}
        self.streams: list[Stream] = []
        self.num_granted: Counter[str] = (
            Counter()
        )  # leases that a session got, less those ended here
        self.delays_s = (0.0, 0.5)  # until a dead replica is replaced
        self.on_message: Callable[[Deployment, Process], None] = lambda deployment, process: None
        self._make = make
        self._changed = asyncio.Event()
        self._num_addresses = 0
        for _ in range(num_replicas):
            self.start(self._new_address())

    def _new_address(self) -> str:
        self._num_addresses += 1
        return f"{self.kind}-{self._num_addresses}"

    def start(self, address: str) -> None:
        """Start an empty replica."""
        epoch = len(self.processes) + 1
        process = self._make(address, f"{address}/{epoch}", epoch)
        self.processes.append(process)
        self.addresses[address] = process
        self._changed.set()
        self.network.note(f"{process.name}: starts")

    @property
    def alive(self) -> list[Process]:
        """Those that are there."""
        return [process for process in self.processes if process.is_alive]

    def kill(self, process: Process) -> None:
        """Kill a replica; another follows."""
        if not process.is_alive:
            return
        self.network.note(f"{process.name}: dies")
        self.network.num_losses[self.kind] += 1
        process.kill()
        is_moved = self.network.rng.random() < 0.5
        address = self._new_address() if is_moved else process.address
        self.network.later(self.network.rng.uniform(*self.delays_s), self.start, address)

    async def chosen(self, avoided: TimedNames, tried: set[str]) -> Process:
        """Return the replica that Serve chooses; wait until there is one."""
        while True:
            names = {*avoided.names(), *tried}
            there = self.alive
            choice = [one for one in there if one.name not in names] or there
            if choice:
                num = min(2, len(choice))
                return min(self.network.rng.sample(choice, num), key=lambda one: one.num_leases)
            self._changed.clear()
            await self._changed.wait()

    # --- what `ServePool` sees of a handle

    @property
    def deployment_name(self) -> str:
        """See `DeploymentHandle`."""
        return self.kind

    def options(self, **words: Any) -> Deployment:
        """See `DeploymentHandle.options`."""
        return self

    def remote(self, request: LeaseRequest) -> Stream:
        """See `DeploymentHandle.remote`."""
        stream = Stream(self, request)
        self.streams.append(stream)
        return stream


class Stream:
    """A lease's streaming call: a `DeploymentResponseGenerator`."""

    avoided: TimedNames  # of the schedule; set by it

    def __init__(self, deployment: Deployment, request: LeaseRequest) -> None:
        self._deployment = deployment
        self._network = deployment.network
        self.session_id = request.session_id
        self.is_cancelled = False
        self._held: tuple[Process, LeaseKey] | None = None
        self._end: asyncio.Future[str] | None = None

    async def __anext__(self) -> LeaseGrant | LeaseRefused:
        """Return the grant; later wait for the lease's end."""
        if self._end is not None:
            return await self._ended(self._end)
        tried: set[str] = set()
        while True:
            await asyncio.sleep(self._network.rng.uniform(0.001, 0.01))
            process = await self._deployment.chosen(self.avoided, tried)
            if not process.is_stopped or process.answers_leases:
                break
            await asyncio.sleep(ANSWER_LIMIT_S)  # it does not answer: Serve chooses again
            tried.add(process.name)
        if self._network.happens("refused", self._network.rates.refuse):
            if self._network.rng.random() < 0.5:
                raise ActorUnavailableError("a random refusal", b"1" * 16)
            return LeaseRefused(replica=process.name, reason="a random refusal")
        key = process.admit(self.session_id)
        self._held, self._end = (process, key), process.ends[key]
        await asyncio.sleep(self._network.rng.uniform(0.0005, 0.003))  # the way back
        self._deployment.num_granted[self.session_id] += 1
        self._network.note(f"{process.name}: leased to {self.session_id}")
        return process.grant

    async def _ended(self, end: asyncio.Future[str]) -> LeaseGrant:
        reason = await asyncio.shield(end)
        await asyncio.sleep(self._network.rng.uniform(0.001, 0.05))
        if reason == "ended":
            self._deployment.num_granted[self.session_id] -= 1
            raise StopAsyncIteration
        raise ActorDiedError

    def cancel(self) -> None:
        """See `DeploymentResponseGenerator.cancel`; it may not arrive."""
        if self.is_cancelled:
            return
        self.is_cancelled = True
        if self._held is not None and not self._network.happens(
            "end of a lease lost", self._network.rates.forget
        ):
            process, key = self._held
            self._network.later(self._network.rng.uniform(0.001, 0.01), process.release, key)


class Links:
    """A router's links: the `LinkClient` of `ServePool`."""

    def __init__(self, network: Network, name: str, deployments: dict[str, Deployment]) -> None:
        self.network = network
        self.public_key = name
        self._deployments = deployments
        self._connections: dict[Endpoint, Connection] = {}

    def channel(
        self, endpoint: Endpoint, session_id: str, reply_type: Any
    ) -> LinkChannel[Any, Any]:
        """See `LinkClient.channel`."""
        connection = self._connections.get(endpoint)
        if connection is None or connection.is_closed:
            deployment = self._deployments[endpoint.address.split("-")[0]]
            connection = Connection(self, deployment, endpoint)
            self._connections[endpoint] = connection
        return connection.open(session_id)

    def silence(self, process: Process) -> None:
        """Close the connection with a process that has said nothing for too long."""
        connection = self._connections.get(process.grant.endpoint)
        if connection is not None:
            connection.close("the process at the other end is silent")

    @property
    def num_open(self) -> int:
        """Channels that are open."""
        return sum(connection.num_open for connection in self._connections.values())


class Connection:
    """One router's connection with one endpoint, and the sessions that share it."""

    def __init__(self, links: Links, deployment: Deployment, endpoint: Endpoint) -> None:
        self._links = links
        self._deployment = deployment
        self._endpoint = endpoint
        self._kind = "constraint" if deployment.kind == "constraint" else "engine"
        self._channels: dict[str, LinkChannel[Any, Any]] = {}
        self.is_closed = False

    @property
    def num_open(self) -> int:
        """Channels that are open."""
        return len(self._channels)

    def open(self, session_id: str) -> LinkChannel[Any, Any]:
        """Open a session's channel; replies go to the newest."""
        connection: Any = self
        channel: LinkChannel[Any, Any] = LinkChannel(connection, session_id)
        self._channels[session_id] = channel
        return channel

    def forget(self, session_id: str, channel: LinkChannel[Any, Any]) -> None:
        """See `deployments.link.client`."""
        if self._channels.get(session_id) is channel:
            del self._channels[session_id]

    def send(self, message: Any) -> None:
        """Carry a message there."""
        way = f"{self._links.public_key} > {self._endpoint.public_key}"
        self._links.network.carry(way, f"{self._kind} request", message, self._deliver)

    def close(self, reason: str) -> None:
        """Lose the sessions."""
        self.is_closed = True
        for channel in self._channels.values():
            channel.mark_lost(reason, "silent")
        self._channels.clear()

    def _deliver(self, message: Any) -> None:
        process = self._deployment.addresses.get(self._endpoint.address)
        if process is not None and process.is_alive:
            process.take(lambda reply: self._reply(process.name, reply), message)
            self._deployment.on_message(self._deployment, process)

    def _reply(self, sender: str, reply: Any) -> None:
        way = f"{sender} > {self._links.public_key}"
        self._links.network.carry(way, f"{self._kind} reply", reply, self._take)

    def _take(self, reply: Any) -> None:
        channel = self._channels.get(reply.session_id)
        if channel is not None:
            channel.mailbox.put(reply)
