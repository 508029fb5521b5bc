"""A ZMQ socket that an event loop serves: frames are handed over as they come, no future for each.

ZMQ signals its file descriptor once for what may be several frames. Whatever call looks at the
socket next takes the signal back, a send included. So a look at the socket ends only when nothing
is left, and a send is followed by one. `zmq.asyncio` makes futures and callbacks for every frame
instead, and a token crosses four such sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

_MAX_FRAMES = 256  # taken at a time; then others in the loop have their turn


class LoopSocket:
    """The socket in the running event loop. Close it before its socket.

    Args:
        socket: connected or bound; nobody else receives from it.
        on_parts: called with the parts of each message. It must not block.
        on_failure: called once where the socket, or `on_parts`, fails; nothing is received after.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_parts: Callable[[list[bytes]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._socket = socket
        self._on_parts = on_parts
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.get(zmq.FD))
        self.is_receiving = True
        self._is_due = False
        self._loop.add_reader(self._fd, self._receive)
        self._look_soon()  # what came before was signalled already

    def send(self, parts: Sequence[bytes]) -> str:
        """Send a message without waiting; return why it is lost, "" if it is not."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return "send queue full"
        except zmq.ZMQError as error:
            return str(error)
        finally:
            self._look_soon()
        return ""

    def close(self) -> None:
        """Receive no more. Idempotent."""
        if self.is_receiving:
            self.is_receiving = False
            self._loop.remove_reader(self._fd)

    def _receive(self) -> None:
        try:
            for _ in range(_MAX_FRAMES):
                if not self.is_receiving or not self._has_frame():
                    return
                self._on_parts(self._socket.recv_multipart(zmq.NOBLOCK))
        except Exception as error:  # noqa: BLE001  # its owner ends what depends on it
            self.close()
            self._on_failure(error)
            return
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        self._receive()

    def _has_frame(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)
