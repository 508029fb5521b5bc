"""Shared by the constraint service's parent and its child processes: config, frames, progress.

A frame is a little-endian 32-bit length and a msgpack array. The parent first sends the
`ConstraintConfig` (alone, not an array), then arrays of requests. `ConstraintRequest` goes to a
child that holds sessions, `Trial` to the canary. The child sends arrays of pairs. A pair is the
request's number (from 0, as sent) and its answer, nil if there is none. Requests that came after a
grammar which is being compiled may be answered before it. The first pair of all is one `ChildReady`
or `ChildFailed`, whose number means nothing.

The `ProgressPage` is shared memory in which the child notes the messages it works on. It outlives
the child: that is how the parent knows which grammar a dead child was busy with.

Imports nothing heavy: the child's memory is counted.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from models.protocol.grammars import GrammarChecked, Loosened
from models.protocol.messages import ConstraintReply, ConstraintRequest, Grammar

OUT_OF_MEMORY_EXIT = 70
_RECEIVE_BYTES = 1 << 18
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class ConstraintConfig:
    """Settings of one constraint replica: those of `GrammarServiceConfig`, whose defaults hold, and
    a few that nobody sets. Plain, because children read it without pydantic.

    `vocab_size` is that of the models' logits and may exceed the tokenizer's; `eos_ids` are all ids
    that end a text. The limits of a grammar are CPU time and memory of a trial of its own. So
    neither a busy machine nor other grammars count against it. Deadlines (`*_timeout_s`) are
    wall-clock, from the moment at which the child can begin a message.
    """

    tokenizer_path: str  # a tokenizer.json, or a folder that has one
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_children: int  # that hold sessions; one more, the canary, tries new grammars
    memory_limit_mb: int  # limit of each child
    compile_cpu_s: float  # CPU time one grammar may take to compile
    compile_memory_mb: int  # memory one grammar may take to compile
    # A trial's and a compile's wall-clock; below the 20 s a router waits for an answer.
    compile_timeout_s: float
    mask_timeout_s: float  # masks and commits; a child without CPU gets more, see `process`
    cache_size: int  # compiled grammars in each child
    max_schema_bytes: int
    max_sessions: int  # in each child
    reward_cpu_s: float  # CPU time that a reward may take for one question
    reward_memory_mb: int  # memory, likewise
    reward_timeout_s: float  # wall-clock, likewise
    reward_classifiers: dict[str, str]  # folders by the names that requests give
    start_timeout_s: float = 60.0  # until a child has read the tokenizer
    max_queue: int = 4096  # unanswered messages of each child
    # This is for trials and compiles, and is added to that of masks. The engines add as much on a
    # CPU: a compile shares cores with passes like one of them, and is not starved by them.
    niceness: int = 4


class ChildReady(msgspec.Struct, frozen=True, kw_only=True, tag="child_ready"):
    """The child has read what it serves with, and serves."""


class ChildFailed(msgspec.Struct, frozen=True, kw_only=True, tag="child_failed"):
    """The child cannot serve with this config; it ends."""

    message: str


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """Compile `grammar` in a process of its own, for as long as `cpu_s` of CPU time.

    With a `text`: and compare that with it.
    """

    grammar: Grammar
    cpu_s: float
    text: str | None = None


class Tried(msgspec.Struct, frozen=True, kw_only=True, tag="tried"):
    """The end of a trial.

    `compiled`: within the limits. `refused`: by the compiler, `message` has the reason. `costly`:
    over the limit on CPU time or memory, or it ended its process; `message` tells which. `failed`:
    for no fault of the grammar, such as a lack of CPU or memory.
    """

    outcome: Literal["compiled", "refused", "costly", "failed"]
    message: str = ""
    dropped: tuple[Loosened, ...] = ()  # parts that had to be loosened, see `Grammar`
    compared: GrammarChecked | None = None  # of a trial with a text; for no session yet


ChildRequest = ConstraintRequest | Trial
ChildReply = ConstraintReply | Tried
ChildEntry = tuple[int, ChildReply | ChildReady | ChildFailed | None]


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
    """Reads frames, and blocks until they are there.

    It always reads into the same buffer. A new one for each read, cut to the read bytes, leaves
    holes in the heap. The heap then grows for hours.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._splitter = FrameSplitter()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._ready: list[bytes] = []

    def next(self) -> bytes | None:
        """Return the next frame; None if the other side has closed."""
        while not self._ready:
            if not self._receive():
                return None
        return self._ready.pop(0)

    def ready(self) -> list[bytes]:
        """Frames that are here already."""
        ready, self._ready = self._ready, []
        return ready

    def take(self) -> list[bytes] | None:
        """Read once and return the whole frames, maybe none; None if the other side has closed."""
        return self.ready() if self._receive() else None

    def _receive(self) -> bool:
        num_bytes = self._link.recv_into(self._buffer)
        self._ready += self._splitter.feed(self._buffer[:num_bytes])
        return num_bytes > 0


@dataclass(frozen=True)
class Work:
    """The request that one thread of a child works on; its number is None if it is idle."""

    num_begun: int  # requests so far
    number: int | None
    cpu_ns_at_begin: int  # CPU time the thread had used when it began this request


@dataclass(frozen=True)
class Progress:
    """The progress of a child."""

    num_taken: int  # requests read from the socket
    serving: Work  # work of the thread that answers
    compiling: Work  # work of the thread that compiles


class Lane:
    """One thread's place on the page (child side)."""

    _WORDS = struct.Struct("<QQQ")

    def __init__(self, page: mmap.mmap, start: int) -> None:
        self._page = page
        self._start = start
        self._num_begun = 0

    def begin(self, number: int) -> None:
        """Note that the thread begins a request. Call it on that thread: it reads its CPU time."""
        self._num_begun += 1
        words = (self._num_begun, number + 1, time.thread_time_ns())
        self._WORDS.pack_into(self._page, self._start, *words)

    def finish(self) -> None:
        """Note that the request is done."""
        struct.pack_into("<Q", self._page, self._start + 8, 0)

    @classmethod
    def read(cls, page: mmap.mmap, start: int) -> Work:
        """Read the request that the thread works on (parent side)."""
        num_begun, number, cpu_ns = cls._WORDS.unpack_from(page, start)
        return Work(num_begun, number - 1 if number else None, cpu_ns)


class ProgressPage:
    """Shared memory with one writer, the child. A torn read is put right by the next one."""

    NUM_BYTES = 64
    _SERVING, _COMPILING = 8, 32

    def __init__(self, file_descriptor: int) -> None:
        self._page = mmap.mmap(file_descriptor, self.NUM_BYTES)
        self._num_taken = 0
        self.serving = Lane(self._page, self._SERVING)
        self.compiling = Lane(self._page, self._COMPILING)

    def take(self, num_requests: int) -> None:
        """Note that so many more requests were read (child side)."""
        self._num_taken += num_requests
        struct.pack_into("<Q", self._page, 0, self._num_taken)

    def read(self) -> Progress:
        """Return the child's progress (parent side)."""
        (num_taken,) = struct.unpack_from("<Q", self._page, 0)
        serving, compiling = (Lane.read(self._page, i) for i in (self._SERVING, self._COMPILING))
        return Progress(num_taken, serving, compiling)

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
