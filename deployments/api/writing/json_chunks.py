"""JSON in chunks: lists that are encoded as they grow, and their place in a body.

A body with long lists is never one value and never one string. Its lists are encoded item by item,
in slices of a few milliseconds between which others run. Chunks of them may be part of several
places. The rest around them is written with `null` in their places.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

Item = TypeVar("Item")

SLICE_S = 0.005  # far below the gap between two tokens
_NUM_AT_ONCE = 32  # items done at once: a text's next tokens, a millisecond at the most
_CHUNK_BYTES = 65_536

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

_encoder = msgspec.json.Encoder()


async def in_slices(items: Collection[Item], work: Callable[[Item], None]) -> None:
    """Do `work` for each item, in order. An item should take well below a slice.

    A list of a hundred thousand logprobs takes a second to write. A thread would not help, because
    it is Python, which holds the interpreter. All long work of a loop takes turns, a slice of one
    request in each iteration. So many such requests stop the loop for no longer than one does.
    """
    if len(items) <= _NUM_AT_ONCE:
        for item in items:
            work(item)
        return
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    remaining = iter(items)
    while True:
        async with turn:
            end_s = time.perf_counter() + SLICE_S
            for item in remaining:
                work(item)
                if time.perf_counter() >= end_s:
                    break
            else:
                return
            await asyncio.sleep(0)  # with the turn in hand: no other takes one in this iteration


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
