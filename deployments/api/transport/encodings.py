"""Bodies that a client or a proxy has compressed (`Content-Encoding`), within the limit of bodies.

A short body may hold a long text, so the length of the text counts. The text is made piece by piece
and dropped beyond the limit, however short the body is. Other streams go on between the pieces.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

from deployments.api.schemas.requests import (
    ACCEPTED_ENCODINGS,
    BodyTooLarge,
    UnsupportedEncoding,
)
from models.protocol.errors import InvalidRequest

_PLAIN = ("", "identity")
_PIECE_BYTES = 65_536
_GZIP_BITS = 16 + zlib.MAX_WBITS
_HEAD_BYTES = 2  # size of zlib's header (RFC 1950)
_CODE = "invalid_encoding"


class Decoder:
    """Takes a body that comes in chunks as it is; a subclass decodes one."""

    async def feed(self, chunk: bytes) -> bytes:
        """Return what a chunk adds to the body.

        Raises:
            BodyTooLarge: beyond the limit.
            InvalidRequest: it is not encoded so.
        """
        return chunk

    def finish(self) -> None:
        """Check that the body is whole.

        Raises:
            InvalidRequest: it is not, or not one that is taken.
        """


def decoder_of(values: Sequence[str], limit_bytes: int) -> Decoder:
    """Return what decodes a body.

    Args:
        values: of all its Content-Encoding headers.
        limit_bytes: of the decoded body.
    """
    named = [name.strip().lower() for name in ",".join(values).split(",")]
    encodings = [name.removeprefix("x-") for name in named if name not in _PLAIN]
    if not encodings:
        return Decoder()
    if len(encodings) > 1 or encodings[0] not in ACCEPTED_ENCODINGS:
        return _Unsupported(", ".join(encodings)[:64])
    return _Inflating(encodings[0], limit_bytes)


class _Unsupported(Decoder):
    """Reads a body to its end before it is refused: who still sends would not see the answer."""

    def __init__(self, named: str) -> None:
        self._named = named

    async def feed(self, chunk: bytes) -> bytes:
        return b""

    def finish(self) -> None:
        raise UnsupportedEncoding(
            f"the header Content-Encoding must name one of {', '.join(ACCEPTED_ENCODINGS)}, "
            f"identity, got {self._named!r}"
        )


class _Inflating(Decoder):
    """Undoes gzip or deflate. What is neither is read to its end too, and then refused.

    Args:
        encoding: one of `ACCEPTED_ENCODINGS`.
        limit_bytes: of the decoded body.
    """

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        self._encoding = encoding
        self._limit_bytes = limit_bytes
        self._num_bytes = 0
        self._head = b""  # kept until the kind of stream is known
        self._stream: Any = None
        self._wrong: InvalidRequest | None = None

    async def feed(self, chunk: bytes) -> bytes:
        if self._wrong is not None:
            return b""
        try:
            return await self._inflated(chunk)
        except BodyTooLarge:
            raise
        except InvalidRequest as wrong:
            self._wrong = wrong
            return b""

    async def _inflated(self, chunk: bytes) -> bytes:
        data = self._head + chunk
        if self._stream is None:
            if len(data) < _HEAD_BYTES:
                self._head = data
                return b""
            self._head, self._stream = b"", zlib.decompressobj(_bits(self._encoding, data))
        pieces, piece = [], b""
        while data or len(piece) == _PIECE_BYTES:
            if data and self._stream.eof:
                self._begin_next(data)
            piece = self._decompressed(data)
            data = self._stream.unconsumed_tail or self._stream.unused_data
            pieces.append(piece)
            self._count(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    def finish(self) -> None:
        if self._wrong is not None:
            raise self._wrong
        is_cut = self._head if self._stream is None else not self._stream.eof
        if is_cut:
            raise InvalidRequest(
                f"the body is cut short within its Content-Encoding, {self._encoding}", code=_CODE
            )

    def _begin_next(self, data: bytes) -> None:
        if self._encoding != "gzip":
            raise InvalidRequest(
                f"{len(data)} bytes follow the end of the {self._encoding} body", code=_CODE
            )
        self._stream = zlib.decompressobj(_GZIP_BITS)  # a gzip file may have several parts

    def _decompressed(self, data: bytes) -> bytes:
        try:
            piece: bytes = self._stream.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise InvalidRequest(
                f"the body is not {self._encoding}, as its header Content-Encoding says: {error}",
                code=_CODE,
            ) from None
        return piece

    def _count(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes > self._limit_bytes:
            raise BodyTooLarge(
                f"the body, decoded from {self._encoding}, is longer than the limit of "
                f"{self._limit_bytes} bytes"
            )


def _bits(encoding: str, data: bytes) -> int:
    """Return the kind of stream.

    Many clients leave out the header that deflate has by the standard.
    """
    if encoding == "gzip":
        return _GZIP_BITS
    has_header = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_HEAD_BYTES]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
