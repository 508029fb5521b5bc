"""A Service: connections at one address go to the pods that are ready, by turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence

_CHUNK_BYTES = 65_536
_CONNECT_LIMIT_S = 3.0
_PORT = 8000  # of the pods


class Gateway:
    """Forwards TCP connections, in a thread of its own. Whatever runs stays where it is.

    Args:
        endpoints: the addresses to choose from, asked for each connection.
    """

    def __init__(self, endpoints: Callable[[], Sequence[str]]) -> None:
        self._endpoints = endpoints
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self.url = f"http://127.0.0.1:{future.result(_CONNECT_LIMIT_S)}"

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(writer.close)
                endpoints = self._endpoints()
                if not endpoints:
                    return  # as a Service without endpoints: refused
                address = endpoints[next(self._turn) % len(endpoints)]
                async with asyncio.timeout(_CONNECT_LIMIT_S):
                    there = await asyncio.open_connection(address, _PORT)
                stack.callback(there[1].close)
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))

    def close(self) -> None:
        """Take no further connections, and end those that there are."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CONNECT_LIMIT_S)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.close()
