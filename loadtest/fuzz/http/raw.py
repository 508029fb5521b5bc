"""An HTTP client that may send anything in any pieces, and read as slowly as it likes.

It parses answers by itself (RFC 9112): libraries would tidy up what is under test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

_LINE_END = b"\r\n"
_CONTINUE = 100


@dataclass(slots=True)
class Exchange:
    """A request in pieces, and the way to send it.

    Attributes:
        pieces: of the request, sent one by one; the first ends with the empty line below the
            headers where `waits_for_continue`.
        pause_s: between two pieces.
        read_bytes: most bytes read at once.
        read_pause_s: between two reads.
        waits_for_continue: the body is sent when the server has asked for it, or has answered.
        is_head: the answer has no body.
    """

    pieces: list[bytes]
    pause_s: float = 0.0
    read_bytes: int = 65_536
    read_pause_s: float = 0.0
    waits_for_continue: bool = False
    is_head: bool = False


@dataclass(slots=True)
class RawAnswer:
    """An answer as received. `was_closed`: the server closed the connection after it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    was_closed: bool = False


class BrokenAnswer(Exception):
    """The server sent no HTTP answer, or not a whole one."""


@dataclass(slots=True)
class _Incoming:
    """Bytes from the server, read as slowly as asked."""

    reader: asyncio.StreamReader
    exchange: Exchange
    data: bytearray = field(default_factory=bytearray)

    async def more(self) -> bool:
        """Read some; False at the end."""
        if self.exchange.read_pause_s:
            await asyncio.sleep(self.exchange.read_pause_s)
        found = await self.reader.read(self.exchange.read_bytes)
        self.data += found
        return bool(found)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.data:
            if not await self.more():
                raise BrokenAnswer(f"it ended before {mark!r}: {bytes(self.data[-200:])!r}")
        found, _, rest = bytes(self.data).partition(mark)
        self.data[:] = rest
        return found

    async def exactly(self, num_bytes: int) -> bytes:
        while len(self.data) < num_bytes:
            if not await self.more():
                raise BrokenAnswer(f"it ended after {len(self.data)} of {num_bytes} bytes")
        found = bytes(self.data[:num_bytes])
        del self.data[:num_bytes]
        return found

    async def rest(self) -> bytes:
        while await self.more():
            pass
        found = bytes(self.data)
        self.data.clear()
        return found


async def exchanged(host: str, port: int, exchange: Exchange) -> RawAnswer:
    """Send a request on a connection of its own and read its answer.

    Raises:
        BrokenAnswer: see there.
        OSError: the connection broke.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        sending = asyncio.create_task(_send(writer, exchange.pieces[1:], exchange.pause_s))
        writer.write(exchange.pieces[0])
        incoming = _Incoming(reader, exchange)
        if exchange.waits_for_continue:
            sending.cancel()
            answer = await _head(incoming)
            if answer.status != _CONTINUE:  # refused unread
                return await _whole(incoming, answer, exchange)
            sending = asyncio.create_task(_send(writer, exchange.pieces[1:], exchange.pause_s))
        answer = await _head(incoming)
        while answer.status == _CONTINUE:
            answer = await _head(incoming)
        found = await _whole(incoming, answer, exchange)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return found
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, pieces: list[bytes], pause_s: float) -> None:
    for piece in pieces:
        await asyncio.sleep(pause_s)
        writer.write(piece)
        await writer.drain()


async def _head(incoming: _Incoming) -> RawAnswer:
    lines = (await incoming.until(_LINE_END * 2)).split(_LINE_END)
    version, _, rest = lines[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise BrokenAnswer(f"no status line: {lines[0]!r}")
    pairs = (line.decode("latin-1").partition(":") for line in lines[1:])
    return RawAnswer(int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs})


async def _whole(incoming: _Incoming, answer: RawAnswer, exchange: Exchange) -> RawAnswer:
    headers = answer.headers
    if exchange.is_head or answer.status in (204, 304):
        pass
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        answer.body = await _chunks(incoming)
    elif "content-length" in headers:
        answer.body = await incoming.exactly(int(headers["content-length"]))
    else:
        answer.body = await incoming.rest()
    if headers.get("connection", "").lower() == "close":
        answer.was_closed = await incoming.rest() == b""
    return answer


async def _chunks(incoming: _Incoming) -> bytes:
    body = b""
    while True:
        size = int((await incoming.until(_LINE_END)).split(b";")[0], 16)
        body += await incoming.exactly(size)
        await incoming.until(_LINE_END)
        if size == 0:
            return body
