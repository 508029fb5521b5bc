"""Server-sent events, and responses that are sent as they come into being.

A response pulls an async generator of chunks. Nothing is sent before the first chunk is there. So a
failure up to then is raised, and answered with its proper status. A proxy cuts a connection on
which nothing comes for a while, most of them after a minute. So the response begins without its
first chunk if nothing was sent for `Silence.limit_s`. Each such silence is then broken by a sign
that clients skip. It is a comment among events, and a line break before a JSON body. A later
failure is told in the body.

The response may end by the last chunk, a client that leaves or stops reading, or cancellation by
the server. The generator is always closed before the response returns. So its resources are freed
at once and not when the garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.api.writing.json_chunks import coalesced

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"  # a line that begins with a colon says nothing (HTML, section 9.2.6)
_WHITE_SPACE = b"\n"  # may precede a JSON text (RFC 8259, section 2)
_LEAST_WAIT_S = 0.001  # a timer may be early by a little

logger = logging.getLogger(__name__)


def encode_events(bodies: Iterable[bytes]) -> bytes:
    """Encode each JSON body, which must not contain line breaks, as an event."""
    return b"".join(b"data: " + body + b"\n\n" for body in bodies)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Waits:
    """Time limits of a response.

    Attributes:
        send_timeout_s: for one write, before the client counts as gone. Through Serve's proxy no
            write waits: it takes all and keeps it for the client.
        silence_s: without a byte sent; then a sign is sent. 0: as long as it takes.
    """

    send_timeout_s: float
    silence_s: float = 0.0


class ClientStuck(Exception):
    """The client takes nothing, or has gone."""


class StreamedResponse(Response):
    """Sends what `chunks` yields, each item at once.

    Args:
        chunks: of the body, none empty. Closed in any case.
        waits: limits of silence and of writes.
        failed: the last chunk, for an error of `chunks` after the response has begun. An error
            before is raised.
    """

    own_headers: Mapping[str, str] = {}
    sign = _WHITE_SPACE  # breaks a silence
    may_sign_between_chunks = False
    # True: a failed response is ended in order. False: its connection is broken, so that no client
    # takes it for a success.
    ends_failed_in_order = False

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        waits: Waits,
        failed: Callable[[Exception], bytes],
    ) -> None:
        self._chunks = chunks
        self._waits = waits
        self._failed = failed
        self._sending = asyncio.Lock()
        self._has_begun = self._has_chunk = self._is_over = False
        self._last_sent_s = asyncio.get_running_loop().time()
        self.status_code = 200
        self.background = None
        self.init_headers(self.own_headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI).

        Raises:
            Exception: what `chunks` raised before anything was sent.
        """
        pump = asyncio.create_task(self._pump(send), name="response-pump")
        gone = asyncio.create_task(disconnected(receive), name="response-disconnect")
        others = [gone]
        if self._waits.silence_s:
            others.append(asyncio.create_task(self._break_silences(send), name="response-signs"))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(pump, *others)
            await self._chunks.aclose()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        try:
            async for chunk in self._chunks:
                await self._send(send, chunk)
        except ClientStuck:
            return
        except Exception as error:
            # Said before anything is awaited: from here on no silence is broken.
            self._is_over = not self._has_begun
            if self._is_over:
                raise
            await self._end(send, self._failed(error), in_order=self.ends_failed_in_order)
        else:
            await self._end(send, b"", in_order=True)

    async def _end(self, send: Send, chunk: bytes, *, in_order: bool) -> None:
        with contextlib.suppress(ClientStuck):
            if chunk:
                await self._send(send, chunk)
            self._is_over = True
            if in_order:
                await self._send(send, b"", more=False)

    async def _break_silences(self, send: Send) -> None:
        loop, limit_s = asyncio.get_running_loop(), self._waits.silence_s
        while True:
            wait_s = self._last_sent_s + limit_s - loop.time()
            if wait_s > _LEAST_WAIT_S:
                await asyncio.sleep(wait_s)
                continue
            async with self._sending:
                if self._is_over or (self._has_chunk and not self.may_sign_between_chunks):
                    return
                try:
                    await self._put(send, self.sign, more=True)
                except ClientStuck:
                    return  # the pump is told by its own next write

    async def _send(self, send: Send, chunk: bytes, *, more: bool = True) -> None:
        async with self._sending:
            self._has_chunk = True
            await self._put(send, chunk, more=more)

    async def _put(self, send: Send, body: bytes, *, more: bool) -> None:
        if not self._has_begun:
            self._has_begun = True
            headers = self.raw_headers
            await self._write(
                send, {"type": "http.response.start", "status": 200, "headers": headers}
            )
        await self._write(send, {"type": "http.response.body", "body": body, "more_body": more})
        self._last_sent_s = asyncio.get_running_loop().time()

    async def _write(self, send: Send, message: dict[str, object]) -> None:
        timeout_s = self._waits.send_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await send(message)
        except TimeoutError:  # an OSError too
            logger.info("client took nothing for %s s; its stream is ended", timeout_s)
            raise ClientStuck from None
        except OSError:
            logger.info("client went away while being written to")
            raise ClientStuck from None


class EventStream(StreamedResponse):
    """A stream of encoded events. An error after its beginning is the last of them."""

    media_type = "text/event-stream"
    # Proxies must neither store, compress nor gather events.
    own_headers: Mapping[str, str] = {
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    sign = COMMENT
    may_sign_between_chunks = True
    ends_failed_in_order = True


class WholeJson(StreamedResponse):
    """A JSON body that is sent when it is ready, of which no copy in one piece is ever made.

    Args:
        body: makes it, in chunks.
        waits: limits of silence and of writes.
        failed: the body that tells an error after the response has begun.
    """

    media_type = "application/json"

    def __init__(
        self,
        body: Callable[[], Awaitable[list[bytes]]],
        *,
        waits: Waits,
        failed: Callable[[Exception], bytes],
    ) -> None:
        super().__init__(self._parts(body), waits=waits, failed=failed)

    async def _parts(
        self, body: Callable[[], Awaitable[list[bytes]]]
    ) -> AsyncGenerator[bytes, None]:
        chunks = coalesced(await body())
        if not self._has_begun:
            self.init_headers({"content-length": str(sum(map(len, chunks)))})
        for chunk in chunks:
            yield chunk
            await asyncio.sleep(0)  # a server whose writes never wait would take all at once


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
