"""What the constraint service's parent and its child processes share: config, frames, progress.

A frame is a little-endian 32-bit length and a msgpack array. Parent to child: first the
`ConstraintConfig` (alone, not an array), then arrays of `ConstraintRequest`. Child to parent:
arrays with one entry for each request, in order, nil where there is no answer; before them one
`ChildReady` or `ChildFailed`.

The `ProgressPage` is 32 bytes of shared memory in which the child notes the message it works on.
It outlives the child: that is how the parent knows which grammar a dead child was busy with.

Imports nothing heavy: the child's memory is counted.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from models.messages import ConstraintReply

OUT_OF_MEMORY_EXIT = 70
_RECEIVE_BYTES = 1 << 18
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class ConstraintConfig:
    """Settings of one constraint replica.

    `vocab_size` is that of the models' logits and may exceed the tokenizer's; `eos_ids` are all
    ids that end a text. Deadlines are wall-clock, for one message, from when the child can
    take it up.
    """

    tokenizer_path: str  # a tokenizer.json, or a folder that has one
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_children: int = 1  # that hold sessions; one more tries new grammars
    memory_limit_mb: int = 512  # of each child
    compile_timeout_s: float = 5.0  # opening a session: compile and first mask
    mask_timeout_s: float = 2.0  # masks and commits; allows for a starved child of low priority
    start_timeout_s: float = 60.0  # until a child has read the tokenizer
    cache_size: int = 128  # compiled grammars in each child
    max_schema_bytes: int = 65_536
    max_sessions: int = 1024  # in each child
    max_queue: int = 4096  # unanswered messages of each child
    niceness: int = 19  # of a compile that takes longer than 50 ms

    def __post_init__(self) -> None:
        for name in ("num_children", "cache_size", "max_schema_bytes", "max_sessions", "max_queue"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("compile_timeout_s", "mask_timeout_s", "start_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0")
        if self.memory_limit_mb < 64:
            raise ValueError(f"memory_limit_mb is {self.memory_limit_mb}, the least is 64")
        if not 0 <= self.niceness <= 19:
            raise ValueError(f"niceness is {self.niceness}, it must be within 0..19")


class ChildReady(msgspec.Struct, frozen=True, kw_only=True, tag="child_ready"):
    """The child has read the tokenizer; rows have `row_bytes` bytes."""

    row_bytes: int


class ChildFailed(msgspec.Struct, frozen=True, kw_only=True, tag="child_failed"):
    """The child cannot serve with this config; it ends."""

    message: str


ChildEntry = ConstraintReply | ChildReady | ChildFailed | None


def to_frame(payload: bytes) -> bytes:
    """`payload` with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Payloads that are complete now that `data` has arrived."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]


class FrameReader:
    """Blocking reader of frames.

    Into one buffer for good: a new one for each read, cut down to what came, leaves holes in the
    heap, which then grows for hours.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._splitter = FrameSplitter()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._ready: list[bytes] = []

    def next(self) -> bytes | None:
        """The next frame; None when the other side has closed."""
        while not self._ready:
            num_bytes = self._link.recv_into(self._buffer)
            if not num_bytes:
                return None
            self._ready = list(self._splitter.feed(self._buffer[:num_bytes]))
        return self._ready.pop(0)


@dataclass(frozen=True)
class Progress:
    """How far a child is. It is within a message while `num_begun` is above `num_finished`."""

    num_begun: int
    num_finished: int
    cpu_ns_at_begin: int  # CPU time the process had used when it began the latest message

    @property
    def is_busy(self) -> bool:
        """Whether a message was begun and not finished."""
        return self.num_begun > self.num_finished


class ProgressPage:
    """Shared memory with one writer, the child. A torn read is put right by the next one."""

    NUM_BYTES = 32
    _WORDS = struct.Struct("<QQQ")

    def __init__(self, file_descriptor: int) -> None:
        self._page = mmap.mmap(file_descriptor, self.NUM_BYTES)
        self._num_begun = 0

    def begin(self) -> None:
        """Note that the next message is taken up (child side)."""
        self._num_begun += 1
        self._WORDS.pack_into(
            self._page, 0, self._num_begun, self._num_begun - 1, time.process_time_ns()
        )

    def finish(self) -> None:
        """Note that it is done (child side)."""
        struct.pack_into("<Q", self._page, 8, self._num_begun)

    def read(self) -> Progress:
        """The child's progress (parent side)."""
        return Progress(*self._WORDS.unpack_from(self._page, 0))

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
