"""A way to a service that breaks some of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_ALL = 10**9
NEW_PROXY = -1  # in place of a number of bytes: a proxy that Serve has not told the routes yet
_NO_ROUTE = b"Path '/v1/chat/completions' not found."
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"


@asynccontextmanager
async def cutting(url: str, *num_bytes: int, silently: bool = False) -> AsyncIterator[str]:
    """A way to `url` whose first chats break, each after so many bytes of its connection.

    Silently: nothing more comes and nobody says so, as when a machine is lost.
    """
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    cuts = iter(num_bytes)
    relays: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.create_task(relay(reader, writer)))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = _ALL
        there, back = await asyncio.open_connection(host, int(port))

        async def ask() -> None:
            nonlocal left
            while left != NEW_PROXY and (data := await reader.read(65536)):
                if b"chat/completions" in data:
                    left = next(cuts, _ALL)
                _pass_on(data, left, writer, back)

        asking = asyncio.create_task(ask())
        try:
            while left > 0 and (data := await there.read(512)):
                writer.write(data[:left])
                left -= len(data)
                await writer.drain()
            if silently and left <= 0:
                await asking  # until who asks has given up
        finally:
            asking.cancel()
            for side in (writer, back):
                side.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port_here = server.sockets[0].getsockname()[1]
        try:
            yield url.replace(f":{port}", f":{port_here}")
        finally:
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)


def _pass_on(
    data: bytes, left: int, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
) -> None:
    if left == NEW_PROXY:
        writer.write(_NOT_FOUND % (len(_NO_ROUTE), _NO_ROUTE))
        back.close()
    else:
        back.write(data)
