"""The serving end of a link: a ROUTER socket for a plain thread, and one for an event loop.

`LinkServer` is polled by an engine's leader thread, `AsyncLinkServer` calls back from the
constraint service's event loop. Both bind a random port and let in only keys on their allow-list.
They send all replies of one tick to one peer as one frame. A peer that cannot take a frame (gone,
or its queue is full) loses it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import zmq

from deployments.link.frames import (
    HIGH_WATER_MARK,
    AllowList,
    FrameCodec,
    Gatekeeper,
    KeyPair,
    Renew,
    configure_server,
)
from deployments.link.loop_socket import LoopSocket
from models.protocol.messages import Endpoint

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Peer = bytes  # ZMQ's routing id of one connection
LOOPBACK = "127.0.0.1"
_MAX_FRAMES = 1024  # taken per `receive`, so that one flood cannot hold up a step


def group_by_peer(replies: Iterable[tuple[Peer, Any]]) -> dict[Peer, list[Any]]:
    """Replies per peer, in order."""
    grouped: dict[Peer, list[Any]] = {}
    for peer, reply in replies:
        grouped.setdefault(peer, []).append(reply)
    return grouped


class _Bound(Generic[Request]):
    """A ROUTER socket on a random port, with its keys, its allow-list and its codec.

    Args:
        request_type: union of the message types that peers may send.
        host: address to bind to.
        high_water_mark: frames queued per peer and direction.

    Attributes:
        on_renewed: called with the sessions whose leases a peer renews.
    """

    def __init__(
        self,
        request_type: Any,
        *,
        host: str = LOOPBACK,
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        self._codec: FrameCodec[Request | Renew] = FrameCodec(request_type | Renew)
        self.on_renewed: Callable[[list[str]], None] = lambda session_ids: None
        self._allowed = AllowList()
        context = self._context = zmq.Context()
        self._gatekeeper = Gatekeeper(context, self._allowed)
        keys = KeyPair.generate()
        self.socket = context.socket(zmq.ROUTER)
        configure_server(self.socket, keys, high_water_mark)
        port = self.socket.bind_to_random_port(f"tcp://{host}")
        self.endpoint = Endpoint(
            address=f"tcp://{host}:{port}",
            public_key=keys.public_key,
            epoch=secrets.randbits(62),
        )

    def allow(self, public_key: str) -> None:
        """Let the owner of a CURVE key connect. Idempotent."""
        self._allowed.add(public_key)

    def _requests(self, part: bytes) -> list[Request]:
        """Return the messages of a frame; renewals go to `on_renewed`."""
        requests: list[Request] = []
        for message in self._codec.decode(part):
            if isinstance(message, Renew):
                self.on_renewed(message.session_ids)
            else:
                requests.append(message)
        return requests

    def _unbind(self) -> None:
        """Close the socket and end the authentication thread. Idempotent."""
        if not self.socket.closed:
            self._gatekeeper.close()
            self.socket.close(linger=0)
            self._context.term()


class LinkServer(_Bound[Request]):
    """A ROUTER socket owned by one plain thread; only `allow` may be called from others."""

    def receive(self) -> list[tuple[Peer, Request]]:
        """Return all messages that have arrived, without waiting; poll `socket` to wait."""
        received: list[tuple[Peer, Request]] = []
        for _ in range(_MAX_FRAMES):
            try:
                peer, *parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            for part in parts:
                received.extend((peer, message) for message in self._requests(part))
        return received

    def send(self, replies: Iterable[tuple[Peer, Any]]) -> None:
        """Send replies, one frame per peer. Never blocks."""
        for peer, messages in group_by_peer(replies).items():
            try:
                for frame in self._codec.encode(messages):
                    self.socket.send_multipart([peer, frame], zmq.NOBLOCK)
            except zmq.Again:
                logger.warning("dropped up to %d replies: send queue full", len(messages))

    def close(self) -> None:
        """Close the socket and end the authentication thread. Idempotent."""
        self._unbind()


class AsyncLinkServer(_Bound[Request]):
    """A ROUTER socket in an event loop.

    `on_messages` is called in the loop with everything one frame brought. It must not block, and
    answers by `reply` at any later time. Its exceptions are logged and cost that frame alone.
    Replies of one loop iteration leave as one frame per peer.
    """

    def __init__(
        self,
        request_type: Any,
        on_messages: Callable[[Peer, list[Request]], None],
        *,
        host: str = LOOPBACK,
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        super().__init__(request_type, host=host, high_water_mark=high_water_mark)
        self._on_messages = on_messages
        self._outbox: list[tuple[Peer, Any]] = []
        self._served: LoopSocket | None = None

    def start(self) -> None:
        """Begin to receive, in the running event loop."""
        self._served = LoopSocket(self.socket, self._receive, self._on_failure)

    @property
    def is_receiving(self) -> bool:
        """True if messages are still taken; False after an error in taking them."""
        return self._served is not None and self._served.is_receiving

    def reply(self, peer: Peer, message: Any) -> None:
        """Queue a reply for the frame that leaves at the end of this loop iteration."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((peer, message))

    async def close(self) -> None:
        """Stop receiving and close the socket. Idempotent."""
        if self._served is not None:
            self._served.close()
        self._unbind()

    def _receive(self, parts: list[bytes]) -> None:
        peer, *frames = parts
        for frame in frames:
            try:
                self._on_messages(peer, self._requests(frame))
            except Exception as error:  # noqa: BLE001  # others' messages come here too
                self._codec.note_refused(error)

    def _on_failure(self, error: Exception) -> None:
        logger.error("the link at %s failed", self.endpoint.address, exc_info=error)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._served is None or self.socket.closed:
            return
        for peer, messages in group_by_peer(outbox).items():
            for frame in self._codec.encode(messages):
                if why := self._served.send([peer, frame]):
                    logger.warning("dropped up to %d replies: %s", len(messages), why)
