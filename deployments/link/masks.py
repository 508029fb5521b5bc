"""Asks constraint services for masks in an engine's thread: a `MaskSource` over links.

All sessions at a constraint endpoint share one DEALER socket, and one CURVE key serves for all.
Routers introduce that key to the constraint service (`GrammarOpen.peers`). All requests of one call
leave as one frame per endpoint. Nothing here waits but `poll`. Owned by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import zmq

from deployments.link.frames import (
    HIGH_WATER_MARK,
    FrameCodec,
    KeyPair,
    configure_client,
    wait_readable,
)
from models.protocol.messages import Endpoint, MaskMiss, MaskRequest, Masks

logger = logging.getLogger(__name__)


class LinkMaskSource:
    """Implements `models.grammar.masks.MaskSource`."""

    def __init__(self, *, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self._codec: FrameCodec[Masks | MaskMiss] = FrameCodec(Masks | MaskMiss)
        self._keys = KeyPair.generate()
        self._high_water_mark = high_water_mark
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[Endpoint, zmq.Socket[bytes]] = {}
        self._endpoints: dict[str, Endpoint] = {}  # by session id
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
        if endpoint not in self._sockets:
            self._sockets[endpoint] = self._connect(endpoint)
            self._poller.register(self._sockets[endpoint], zmq.POLLIN)
        self._endpoints[session_id] = endpoint

    def _connect(self, endpoint: Endpoint) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            configure_client(socket, self._keys, endpoint.public_key, self._high_water_mark)
            socket.connect(endpoint.address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ValueError(f"constraint endpoint {endpoint.address!r}: {error}") from error
        return socket

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """Ask for masks, one frame per endpoint. Requests of sessions not open are dropped."""
        by_endpoint: dict[Endpoint, list[MaskRequest]] = {}
        for request in requests:
            endpoint = self._endpoints.get(request.session_id)
            if endpoint is not None:
                by_endpoint.setdefault(endpoint, []).append(request)
        for endpoint, messages in by_endpoint.items():
            try:
                for frame in self._codec.encode(messages):
                    self._sockets[endpoint].send(frame, zmq.NOBLOCK)
            except zmq.Again:
                logger.warning("dropped %d mask requests: send queue full", len(messages))

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        """Return all answers that have arrived; wait up to `timeout_s` for the first."""
        answers: list[Masks | MaskMiss] = []
        if not self._sockets or not wait_readable(self._poller, timeout_s):
            return answers
        for socket in self._sockets.values():
            while True:
                try:
                    answers.extend(self._codec.decode(socket.recv(zmq.NOBLOCK)))
                except zmq.Again:
                    break
        return answers

    def close(self, session_id: str) -> None:
        """Forget the session; the socket goes with the endpoint's last session. Idempotent."""
        endpoint = self._endpoints.pop(session_id, None)
        if endpoint is None or endpoint in self._endpoints.values():
            return
        socket = self._sockets.pop(endpoint)
        self._poller.unregister(socket)
        socket.close(linger=0)

    def shutdown(self) -> None:
        """Close all sockets. Idempotent."""
        for session_id in list(self._endpoints):
            self.close(session_id)
        self._context.term()
