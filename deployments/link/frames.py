"""Shared by both ends of a link: frames, keys, and the right to connect.

A link is a ZMQ connection, DEALER at the asking end (`client`) and ROUTER at the serving end
(`server`). CURVE encrypts and authenticates it. A frame is one ZMQ message. It is the msgpack array
of everything one side had ready for one peer in one tick. Messages are the typed structs of
`models/protocol/messages.py`; nothing is pickled. Links may lose frames (full queues, reconnects):
the protocol above tolerates that. Knows neither Ray nor engines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from models.lru import LruDict

logger = logging.getLogger(__name__)

# Longer frames end the connection; what one tick has for a peer is split into frames well below it.
# A message must fit alone: 65 mask rows of a 256k vocabulary are 2 MB.
MAX_FRAME_BYTES = 64 * 1024 * 1024
_SPLIT_BYTES = MAX_FRAME_BYTES // 2
_FRAMING_BYTES = 4096  # more than encryption and framing add, which counts
HIGH_WATER_MARK = 4096  # frames queued per peer and direction, unless the config says otherwise
MAX_PEERS = 4096  # keys kept on an allow-list; the one not renewed for longest goes first
_DOMAIN = "outrider"  # ZAP domain; one per context
_SHORT_SLEEP_S = 5e-5
SILENCE_TIMEOUT_S = 5.0  # a process whose end of a link is silent for so long counts as dead
_HEARTBEAT_S = 1.5
CONNECTION_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED  # that clients watch

Message = TypeVar("Message")


class Renew(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """Says which sessions' leases their holder still wants. Belongs to links, not to engines."""

    session_ids: list[str]


class FrameCodec(Generic[Message]):
    """Encodes frames of any message type and decodes frames of one union of types.

    Nothing here raises. Messages that cannot be encoded or decoded are dropped, as a lossy link
    would. So one broken message harms neither the process nor the messages of other sessions.
    """

    def __init__(self, message_type: Any) -> None:
        self.num_dropped = 0  # malformed frames and impossible messages, since the start
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(
            list[message_type]
        )

    def encode(self, messages: Sequence[Any]) -> list[bytes]:
        """Frames that hold `messages` in order: one, or several where one would be too long.

        A message that no frame can hold, or that msgpack has no form for, is dropped and logged.
        """
        if not messages:
            return []
        try:
            frame = self._encoder.encode(messages)
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            complaint = str(error)
        else:
            is_single = len(messages) == 1
            if len(frame) <= (MAX_FRAME_BYTES - _FRAMING_BYTES if is_single else _SPLIT_BYTES):
                return [frame]
            complaint = f"{len(frame)} bytes, a frame has at most {MAX_FRAME_BYTES}"
        if len(messages) > 1:
            middle = len(messages) // 2
            return [*self.encode(messages[:middle]), *self.encode(messages[middle:])]
        self._note_drop("a message", f"{type(messages[0]).__name__}: {complaint}", logging.ERROR)
        return []

    def decode(self, frame: bytes | memoryview) -> list[Message]:
        """Return the messages of a frame; none if it is malformed."""
        try:
            return self._decoder.decode(frame)
        # Not msgspec's errors alone: text that is not UTF-8 is a UnicodeDecodeError, deep nesting
        # a RecursionError; a peer's bytes must not end the process that reads them.
        except Exception as error:  # noqa: BLE001
            self._note_drop(f"a malformed frame of {len(frame)} bytes", error)
            return []

    def note_refused(self, error: Exception) -> None:
        """Count the rest of a frame as dropped, and log: its receiver failed at its messages."""
        self._note_drop("a frame", error, logging.ERROR, exc_info=error)

    def _note_drop(
        self,
        what: str,
        why: object,
        level: int = logging.WARNING,
        exc_info: Exception | None = None,
    ) -> None:
        """Count it; log the first, second, fourth, ...: a peer must not fill the log."""
        self.num_dropped += 1
        if self.num_dropped & (self.num_dropped - 1) == 0:
            logger.log(
                level, "dropped %s (%d so far): %s", what, self.num_dropped, why, exc_info=exc_info
            )


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both keys in Z85. The secret one never leaves its process."""

    public_key: str
    secret_key: str

    @classmethod
    def generate(cls) -> KeyPair:
        """Generate a fresh random pair."""
        public_key, secret_key = zmq.curve_keypair()
        return cls(public_key.decode("ascii"), secret_key.decode("ascii"))

    def __repr__(self) -> str:
        return f"KeyPair(public_key={self.public_key!r})"


class AllowList:
    """The CURVE keys that may connect. Safe to use from several threads."""

    def __init__(self, max_peers: int = MAX_PEERS) -> None:
        self._keys: LruDict[bytes, None] = LruDict(max_peers)

    def add(self, public_key: str) -> None:
        """Let the owner of a key connect from now on. Idempotent."""
        self._keys[public_key.encode("ascii")] = None

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by pyzmq's authenticator for each handshake; `key` is Z85."""
        return key in self._keys


class Gatekeeper:
    """Answers ZMQ's authentication requests of one context from an allow-list, in a thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: AllowList) -> None:
        self._authenticator = ThreadAuthenticator(context, log=logger.getChild("auth"))
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, credentials_provider=allowed)

    def close(self) -> None:
        """End the thread; no further handshake succeeds."""
        self._authenticator.stop()


def wait_readable(poller: zmq.Poller, timeout_s: float) -> bool:
    """Wait until a registered socket can be read, up to `timeout_s`; False when none can.

    ZMQ polls in whole milliseconds, which is too coarse for batch forming windows. So the part
    below one millisecond is waited out in short sleeps.
    """
    deadline = time.monotonic() + timeout_s
    if poller.poll(max(0, int(timeout_s * 1e3))):
        return True
    while time.monotonic() < deadline:
        time.sleep(_SHORT_SLEEP_S)
        if poller.poll(0):
            return True
    return False


def configure_server(socket: zmq.Socket[Any], keys: KeyPair, high_water_mark: int) -> None:
    """Set the options of a ROUTER socket before it binds."""
    _configure(socket, keys, high_water_mark)
    socket.curve_server = True
    socket.zap_domain = _DOMAIN.encode("ascii")


def configure_client(
    socket: zmq.Socket[Any],
    keys: KeyPair,
    server_key: str,
    high_water_mark: int,
    *,
    heartbeat_timeout_s: float = SILENCE_TIMEOUT_S,
) -> None:
    """Set the options of a DEALER socket before it connects."""
    _configure(socket, keys, high_water_mark)
    socket.heartbeat_ivl = int(1e3 * min(_HEARTBEAT_S, heartbeat_timeout_s / 3))
    socket.heartbeat_timeout = int(1e3 * heartbeat_timeout_s)
    socket.curve_serverkey = server_key.encode("ascii")


def _configure(socket: zmq.Socket[Any], keys: KeyPair, high_water_mark: int) -> None:
    socket.linger = 0
    socket.sndhwm = high_water_mark
    socket.rcvhwm = high_water_mark
    socket.maxmsgsize = MAX_FRAME_BYTES
    # A peer that is silent for the timeout is disconnected. ZMQ's own threads answer, so a busy
    # process is not silent; a stopped one is.
    socket.heartbeat_ivl = int(1e3 * _HEARTBEAT_S)
    socket.heartbeat_timeout = int(1e3 * SILENCE_TIMEOUT_S)
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 1000
    socket.curve_publickey = keys.public_key.encode("ascii")
    socket.curve_secretkey = keys.secret_key.encode("ascii")
