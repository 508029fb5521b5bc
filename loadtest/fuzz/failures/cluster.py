"""Replicas, as routers reach them: by handles (`handles.py`) and links.

`deployments.ingress.pools.ServePool` is the real one; a handle, a stream and a connection are what
it needs of Ray and ZMQ. A deployment replaces what dies by an empty replica, after a while, maybe
at the same address.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from deployments.link.client import LinkChannel
from loadtest.fuzz.failures.handles import Handle, Replica
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process
from models.protocol.messages import Endpoint

Make = Callable[[str, str, int], Process]  # address, name, epoch


class Deployment:
    """All replicas of one kind.

    Args:
        network: of the schedule.
        kind: "target", "draft" or "constraint".
        make: makes a replica's process.
        num_replicas: how many there are; each dead one is replaced.
        places: leases that each holds at most.
    """

    def __init__(
        self, network: Network, kind: str, make: Make, num_replicas: int, places: float = math.inf
    ) -> None:
        self.network, self.kind = network, kind
        self.processes: list[Process] = []  # in the order they began; those that are gone too
        self.addresses: dict[str, Process] = {}
        self.handles: list[Handle] = []
        self.delays_s = (0.0, 0.5)  # until a dead replica is replaced
        self.on_message: Callable[[Deployment, Process], None] = lambda deployment, process: None
        self._make, self._places = make, places
        self._replicas: list[Replica] = []
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
        process.places = self._places
        self._replicas.append(Replica(self.kind, process))
        for handle in self.handles:
            self._tell(handle)
        self.network.note(f"{process.name}: starts")

    def _tell(self, handle: Handle) -> None:
        handle.router.update_replicas([one for one in self._replicas if one.process.is_alive])

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

    def handle(self) -> Any:
        """Return a new handle of a router."""
        handle = Handle(self.network, self.kind)
        self.handles.append(handle)
        self._tell(handle)
        return handle


class Links:
    """A router's links: the `LinkClient` of `ServePool`."""

    def __init__(self, network: Network, name: str, deployments: dict[str, Deployment]) -> None:
        self.network = network
        self.public_key = name
        self.deployments = deployments
        self._connections: dict[Endpoint, Connection] = {}

    def channel(
        self, endpoint: Endpoint, session_id: str, reply_type: Any
    ) -> LinkChannel[Any, Any]:
        """See `LinkClient.channel`."""
        connection = self._connections.get(endpoint)
        if connection is None or connection.is_closed:
            deployment = self.deployments[endpoint.address.split("-")[0]]
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
