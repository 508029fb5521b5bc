"""JSON in chunks: lists that are encoded as they grow, and their place in a body.

A body with long lists is never one value and never one string. Its lists are encoded item by item;
chunks of them may be part of several places. The rest around them is written with `null` in their
places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

_CHUNK_BYTES = 65_536

_encoder = msgspec.json.Encoder()


class JsonItems:
    """The content of a JSON list between its brackets; it grows, and encoded items never change."""

    def __init__(self) -> None:
        self._full: list[bytes] = []
        self._open = bytearray()

    def append(self, item: object) -> None:
        """Encode one more item: numbers, strings, None, and lists and dicts of them."""
        if self._full or self._open:
            self._open += b","
        _encoder.encode_into(item, self._open, -1)
        if len(self._open) >= _CHUNK_BYTES:
            self._full.append(bytes(self._open))
            self._open.clear()

    @property
    def chunks(self) -> list[bytes]:
        """The items so far, comma between them; empty when there are none."""
        return [*self._full, bytes(self._open)] if self._open else list(self._full)


def items_in_one(*parts: JsonItems) -> list[bytes]:
    """Return the content between the brackets of a list of all their items, in order."""
    chunks: list[bytes] = []
    for part in parts:
        own = part.chunks
        if chunks and own:
            chunks.append(b",")
        chunks += own
    return chunks


def with_value(
    body: bytes, key: str, chunks: Iterable[bytes], *, instead: str = "null"
) -> list[bytes]:
    """Put the JSON text `chunks` into a JSON object as the value of its first `key`.

    Args:
        body: the object with `instead` as that value, without white space.
        key: plain ASCII. It cannot be mistaken: quotes within strings are escaped.
        chunks: valid JSON when joined.
        instead: its value now.
    """
    before, found, after = body.partition(f'"{key}":{instead}'.encode())
    if not found:
        raise ValueError(f"no {key} of {instead} in a body of {len(body)} bytes")
    return [before + f'"{key}":'.encode(), *chunks, after]


def coalesced(chunks: Sequence[bytes]) -> list[bytes]:
    """Gather the bytes in chunks that are worth a write each; long ones stay."""
    gathered: list[bytes] = []
    small: list[bytes] = []
    for chunk in chunks:
        if len(chunk) >= _CHUNK_BYTES:
            gathered += [b"".join(small), chunk]
            small = []
        else:
            small.append(chunk)
    return [chunk for chunk in [*gathered, b"".join(small)] if chunk]
