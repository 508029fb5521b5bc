"""What both ends of a link share: frames, keys, and who may connect.

A link is a ZMQ connection, DEALER at the asking end (`link_client`) and ROUTER at the serving end
(`link_server`), encrypted and authenticated by CURVE. A frame is one ZMQ message: the msgpack
array of everything one side had ready for one peer in one tick. Messages are the typed structs of
`models/messages.py`; nothing is pickled. Links may lose frames (full queues, reconnects): the
protocol above tolerates that. Knows neither Ray nor engines.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

logger = logging.getLogger(__name__)

# One message fits: 65 mask rows of a 256k vocabulary are 2 MB. What is gathered for a peer
# in one tick need not fit (64 such sessions: 136 MB) and is cut into several frames.
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_PEERS = 4096  # keys kept on an allow-list; the one not renewed for longest goes first
_DOMAIN = "outrider"  # ZAP domain; one per context
_SHORT_SLEEP_S = 5e-5
SILENCE_TIMEOUT_S = 10.0  # a process whose end of a link is silent for so long counts as dead
_HEARTBEAT_S = 2.0

Message = TypeVar("Message")


class FrameCodec(Generic[Message]):
    """Encodes frames of any message type and decodes frames of one union of types."""

    def __init__(self, message_type: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(
            list[message_type]
        )

    def encode(self, messages: Sequence[Any]) -> bytes:
        """One frame that holds `messages` in order."""
        return self._encoder.encode(messages)

    def frames(self, messages: Sequence[Any], max_bytes: int = MAX_FRAME_BYTES) -> list[bytes]:
        """As few frames as hold `messages` in order, none longer, unless one message is."""
        frame = self.encode(messages)
        if len(frame) <= max_bytes or len(messages) == 1:
            return [frame]
        half = len(messages) // 2
        return [*self.frames(messages[:half], max_bytes), *self.frames(messages[half:], max_bytes)]

    def decode(self, frame: bytes | memoryview) -> list[Message]:
        """The messages of a frame; none, with a warning logged, when it is malformed."""
        try:
            return self._decoder.decode(frame)
        except msgspec.MsgspecError as error:
            logger.warning("dropped a malformed frame of %d bytes: %s", len(frame), error)
            return []


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both keys in Z85. The secret one never leaves its process."""

    public_key: str
    secret_key: str

    @classmethod
    def generate(cls) -> KeyPair:
        """A fresh random pair."""
        public_key, secret_key = zmq.curve_keypair()
        return cls(public_key.decode("ascii"), secret_key.decode("ascii"))

    def __repr__(self) -> str:
        return f"KeyPair(public_key={self.public_key!r})"


class AllowList:
    """The CURVE keys that may connect. Safe to use from several threads."""

    def __init__(self, max_peers: int = MAX_PEERS) -> None:
        self._max_peers = max_peers
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, public_key: str) -> None:
        """Let the owner of a key connect from now on. Idempotent."""
        key = public_key.encode("ascii")
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > self._max_peers:
            self._keys.popitem(last=False)

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

    ZMQ polls in whole milliseconds, which is too coarse for batch forming windows, so the part
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
