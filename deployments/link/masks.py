"""Asks constraint services for masks in an engine's thread: a `MaskSource` over links.

All sessions at a constraint endpoint share one DEALER socket, and one CURVE key serves for all.
Routers introduce that key to the constraint service (`GrammarOpen.peers`). All requests of one call
leave as one frame per endpoint. Nothing here waits but `poll`. Owned by one thread.

Answers are lost with their connection. So a request is missed at once where one breaks, and until
it is there again. A dead service is not waited for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from deployments.link.frames import (
    CONNECTION_EVENTS,
    HIGH_WATER_MARK,
    FrameCodec,
    KeyPair,
    configure_client,
    wait_readable,
)
from models.protocol.messages import Endpoint, MaskMiss, MaskRequest, Masks

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Connection:
    """A socket to an endpoint, its monitor, and the requests without an answer by their tickets."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    asked: dict[int, MaskRequest] = field(default_factory=dict)
    is_broken: bool = False  # and not there again

    def take(self, codec: FrameCodec[Masks | MaskMiss]) -> list[Masks | MaskMiss]:
        """Take the answers that have come, and misses for what was lost with the connection."""
        answers: list[Masks | MaskMiss] = []
        with contextlib.suppress(zmq.Again):
            while True:
                answers += codec.decode(self.socket.recv(zmq.NOBLOCK))
        for answer in answers:
            self.asked.pop(answer.ticket, None)
        while int(self.monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            self.is_broken = event == zmq.EVENT_DISCONNECTED
            if self.is_broken:
                answers += map(_missed, self.asked.values())
                self.asked.clear()
        return answers

    def forget(self, session_id: str) -> None:
        """Await no answer for a session any more."""
        self.asked = {
            ticket: each for ticket, each in self.asked.items() if each.session_id != session_id
        }

    def close(self) -> None:
        """Close its sockets."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


def _missed(request: MaskRequest) -> MaskMiss:
    return MaskMiss(
        session_id=request.session_id,
        ticket=request.ticket,
        reason="failed",
        message="the connection to the constraint service broke",
    )


class LinkMaskSource:
    """Implements `models.grammar.masks.MaskSource`."""

    def __init__(self, *, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self._codec: FrameCodec[Masks | MaskMiss] = FrameCodec(Masks | MaskMiss)
        self._keys = KeyPair.generate()
        self._high_water_mark = high_water_mark
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: dict[Endpoint, _Connection] = {}
        self._endpoints: dict[str, Endpoint] = {}  # by session id
        self._answers: list[Masks | MaskMiss] = []  # since the last `poll`
        self._poller = zmq.Poller()

    @property
    def public_key(self) -> str:
        """The CURVE key that constraint services must allow."""
        return self._keys.public_key

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """Ask this endpoint for the session's masks from now on. Idempotent.

        Raises:
            ValueError: there is no connecting to such an endpoint.
        """
        if self._endpoints.get(session_id) == endpoint:
            return
        self.close(session_id)
        if endpoint not in self._connections:
            self._connections[endpoint] = connection = self._connect(endpoint)
            self._poller.register(connection.socket, zmq.POLLIN)
            self._poller.register(connection.monitor, zmq.POLLIN)
        self._endpoints[session_id] = endpoint

    def _connect(self, endpoint: Endpoint) -> _Connection:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        connection = _Connection(socket, socket.get_monitor_socket(CONNECTION_EVENTS))
        try:
            configure_client(socket, self._keys, endpoint.public_key, self._high_water_mark)
            socket.connect(endpoint.address)
        except zmq.ZMQError as error:
            connection.close()
            raise ValueError(f"constraint endpoint {endpoint.address!r}: {error}") from error
        return connection

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """Ask for masks, one frame per endpoint. Requests of sessions not open are dropped."""
        by_endpoint: dict[Endpoint, list[MaskRequest]] = {}
        for request in requests:
            endpoint = self._endpoints.get(request.session_id)
            if endpoint is not None:
                by_endpoint.setdefault(endpoint, []).append(request)
        for endpoint, messages in by_endpoint.items():
            connection = self._connections[endpoint]
            self._answers += connection.take(self._codec)
            if connection.is_broken:
                self._answers += map(_missed, messages)
                continue
            connection.asked.update((message.ticket, message) for message in messages)
            try:
                for frame in self._codec.encode(messages):
                    connection.socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                logger.warning("dropped %d mask requests: send queue full", len(messages))

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        """Return all answers that have arrived; wait up to `timeout_s` for the first."""
        wait_s = 0.0 if self._answers else timeout_s
        if self._connections and wait_readable(self._poller, wait_s):
            for connection in self._connections.values():
                self._answers += connection.take(self._codec)
        answers, self._answers = self._answers, []
        return answers

    def close(self, session_id: str) -> None:
        """Forget the session; the socket goes with the endpoint's last session. Idempotent."""
        endpoint = self._endpoints.pop(session_id, None)
        if endpoint is None:
            return
        connection = self._connections[endpoint]
        connection.forget(session_id)
        if endpoint in self._endpoints.values():
            return
        del self._connections[endpoint]
        self._poller.unregister(connection.socket)
        self._poller.unregister(connection.monitor)
        connection.close()

    def shutdown(self) -> None:
        """Close all sockets. Idempotent."""
        for session_id in list(self._endpoints):
            self.close(session_id)
        self._context.term()
