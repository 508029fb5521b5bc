"""The asking end of a link, for routers: sessions in an event loop.

There is one `LinkClient` per process. It has one CURVE key and one DEALER socket per endpoint. All
sessions there share them, and replies are demultiplexed by session id. Channels are bounded. The
oldest reply of a session that does not read is dropped, as a lossy link would. Replies for sessions
that are not open here are dropped. A stopped process answers neither heartbeats nor handshakes. Its
connection is closed after `silence_timeout_s`, and its sessions' channels are marked lost. The
plain-thread form, for engines that ask for masks, is `masks`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from deployments.link.frames import (
    CONNECTION_EVENTS,
    HIGH_WATER_MARK,
    SILENCE_TIMEOUT_S,
    FrameCodec,
    KeyPair,
    Renew,
    configure_client,
)
from deployments.link.leases import RENEWAL_S
from deployments.link.loop_socket import LoopSocket
from deployments.link.mailbox import MailboxChannel
from models.protocol.errors import LossReason, Unavailable
from models.protocol.messages import Endpoint

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_IDLE_CONNECTION_S = 60.0  # a connection without sessions is kept this long for the next one


class LinkChannel(MailboxChannel[Request, Reply]):
    """Implements `router.ports.Channel` over a shared connection."""

    def __init__(self, connection: _Connection, session_id: str) -> None:
        super().__init__(connection.send)
        self._connection = connection
        self._session_id = session_id

    def mark_lost(self, message: str, reason: LossReason = "gone") -> None:
        """Make `receive` raise `LinkLost`, at once. Idempotent."""
        self.mailbox.mark_lost(message, reason)

    def close(self) -> None:
        """Receive no more. Messages sent before still go out. Idempotent."""
        self.mailbox.mark_lost("the session's channel is closed")
        self._connection.forget(self._session_id, self)


class _Connection:
    """One DEALER socket and the sessions that share it."""

    def __init__(self, client: LinkClient, endpoint: Endpoint, reply_type: Any) -> None:
        self.endpoint = endpoint
        self._client = client
        self._codec: FrameCodec[Any] = FrameCodec(reply_type)
        self._channels: dict[str, LinkChannel[Any, Any]] = {}
        self._outbox: list[Any] = []
        self._socket = client.context.socket(zmq.DEALER)
        configure_client(
            self._socket,
            client.keys,
            endpoint.public_key,
            client.high_water_mark,
            heartbeat_timeout_s=client.silence_timeout_s / 2,
        )
        self._monitor = self._socket.get_monitor_socket(CONNECTION_EVENTS)
        try:
            self._socket.connect(endpoint.address)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise Unavailable(f"{endpoint.address!r} is no address to connect to") from error
        self._link = LoopSocket(self._socket, self._receive, self._on_failure)
        self._events = LoopSocket(self._monitor, self._watch, self._on_failure)
        self._silence_timer: asyncio.TimerHandle | None = None
        self._begin_silence(client.silence_timeout_s)
        self._renewing = asyncio.create_task(self._renew(), name=f"renew {endpoint.address}")
        self._idle_timer: asyncio.TimerHandle | None = None

    def open(self, session_id: str) -> LinkChannel[Any, Any]:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        channel: LinkChannel[Any, Any] = LinkChannel(self, session_id)
        self._channels[session_id] = channel
        self.send(Renew(session_ids=[session_id]))  # from now on the lease ends without
        return channel

    def forget(self, session_id: str, channel: LinkChannel[Any, Any]) -> None:
        if self._channels.get(session_id) is not channel:
            return  # the session has a newer channel here
        del self._channels[session_id]
        if not self._channels and not self._socket.closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(
                _IDLE_CONNECTION_S, self._client.drop, self.endpoint, "idle"
            )

    def send(self, message: Any) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def close(self, reason: str) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._end_silence()
        self._renewing.cancel()
        self._link.close()
        self._events.close()
        self._close_sockets()
        for channel in list(self._channels.values()):
            channel.mark_lost(reason, "silent")
        self._channels.clear()

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _on_failure(self, error: Exception) -> None:
        """Fail the sessions of a connection that no longer receives but looks alive."""
        logger.error("link %s failed", self.endpoint.address, exc_info=error)
        self._client.drop(self.endpoint, f"the link failed: {error}")

    async def wait_closed(self) -> None:
        await asyncio.gather(self._renewing, return_exceptions=True)

    def _watch(self, parts: list[bytes]) -> None:
        """Note that the endpoint was connected, or that the connection was lost.

        The silence counts from the moment of the loss. Another process on that port may take and
        close connections again and again. That does not end it.
        """
        event = parse_monitor_message(parts)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._end_silence()
        elif event == zmq.EVENT_DISCONNECTED and self._silence_timer is None:
            # Half the time was for a heartbeat, and half is to be connected again.
            self._begin_silence(self._client.silence_timeout_s / 2)

    def _begin_silence(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._silence_timer = loop.call_later(limit_s, self._give_up)

    def _end_silence(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None

    def _give_up(self) -> None:
        """Drop an endpoint that was not connected for too long."""
        logger.warning("link %s: no sign of life", self.endpoint.address)
        self._client.drop(self.endpoint, "the process at the other end is silent")

    async def _renew(self) -> None:
        """Say now and then which sessions are here: the leases of others end soon."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            if self._channels:
                self.send(Renew(session_ids=list(self._channels)))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._socket.closed:
            return
        for frame in self._codec.encode(outbox):
            if why := self._link.send([frame]):
                logger.warning("dropped a frame to %s: %s", self.endpoint.address, why)

    def _receive(self, parts: list[bytes]) -> None:
        for frame in parts:
            for reply in self._codec.decode(frame):
                channel = self._channels.get(reply.session_id)
                if channel is not None:
                    channel.mailbox.put(reply)


class LinkClient:
    """All links of one process, in one event loop."""

    def __init__(
        self,
        *,
        high_water_mark: int = HIGH_WATER_MARK,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
    ) -> None:
        self.keys = KeyPair.generate()
        self.high_water_mark = high_water_mark
        self.silence_timeout_s = silence_timeout_s
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: dict[Endpoint, _Connection] = {}
        self._is_closed = False

    @property
    def public_key(self) -> str:
        """The key that servers must allow before `channel` can get through."""
        return self.keys.public_key

    def channel(
        self, endpoint: Endpoint, session_id: str, reply_type: Any
    ) -> LinkChannel[Any, Any]:
        """Return a session's channel to an endpoint; it connects on first use, without waiting.

        Args:
            endpoint: from a lease's grant.
            session_id: replies are given to the newest channel of this id.
            reply_type: union of message types the endpoint sends; the same for all its sessions.

        Raises:
            Unavailable: this client was closed, or the endpoint's address is none.
        """
        if self._is_closed:  # a socket opened now would be waited for in `close` for ever
            raise Unavailable(f"session {session_id}: the links of this process are closed")
        connection = self._connections.get(endpoint)
        if connection is None:
            connection = _Connection(self, endpoint, reply_type)
            self._connections[endpoint] = connection
        return connection.open(session_id)

    def drop(self, endpoint: Endpoint, reason: str) -> None:
        """Close the connection to an endpoint, if there is one: the `receive` of its sessions
        raises `LinkLost` at once. Idempotent."""
        connection = self._connections.pop(endpoint, None)
        if connection is not None:
            connection.close(reason)

    async def close(self) -> None:
        """Close all links, for good. Idempotent, also while another call of it is under way."""
        self._is_closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:  # all before any wait: `term` waits for every open socket
            connection.close("the link client is closed")
        for connection in connections:
            await connection.wait_closed()
        if not self.context.closed:
            self.context.destroy(linger=0)
