"""Server-sent events: their encoding, and responses in chunks that end with their client.

`EventStream` pulls an async generator of encoded events. Whatever ends the response - the last
event, a client that goes away, one that stops reading, cancellation by the server - the generator
is closed before the response returns, so that what it holds is freed at once and not when the
garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"

logger = logging.getLogger(__name__)


def encode_events(bodies: Iterable[bytes]) -> bytes:
    """One event for each JSON body (which must not contain line breaks)."""
    return b"".join(b"data: " + body + b"\n\n" for body in bodies)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what `events` yields, each item at once.

    Args:
        events: encoded events; errors must have become events before. Closed in any case.
        send_timeout_s: how long a client may keep us waiting for one write before it counts as
            gone. Through Serve's proxy no write waits: it takes all and keeps it for the client.
    """

    media_type: str | None = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        send_timeout_s: float,
    ) -> None:
        self._events = events
        self._send_timeout_s = send_timeout_s
        self.status_code = 200
        self.background = None
        # Proxies must neither store nor gather events.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI)."""
        pump = asyncio.create_task(self._pump(send), name="sse-pump")
        gone = asyncio.create_task(disconnected(receive), name="sse-disconnect")
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(pump, gone)
            await self._events.aclose()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        try:
            await self._send(
                send,
                {"type": "http.response.start", "status": 200, "headers": self.raw_headers},
            )
            async for chunk in self._events:
                await self._send(
                    send, {"type": "http.response.body", "body": chunk, "more_body": True}
                )
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:  # an OSError too
            logger.info("client took nothing for %s s; its stream is ended", self._send_timeout_s)
        except OSError:
            logger.info("client went away while being written to")

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send(message)


class ChunkedJson(EventStream):
    """A JSON body in chunks, of which no copy in one piece is ever made."""

    media_type = "application/json"

    def __init__(self, chunks: Sequence[bytes], *, send_timeout_s: float) -> None:
        super().__init__(_each(chunks), send_timeout_s=send_timeout_s)
        self.init_headers({"content-length": str(sum(map(len, chunks)))})


async def _each(chunks: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)  # a server whose writes never wait would take all at once


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
