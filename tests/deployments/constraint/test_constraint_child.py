from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.constraint.pipe import (
    ChildEntry,
    ChildFailed,
    ChildReady,
    FrameReader,
    FrameSplitter,
    ProgressPage,
    to_frame,
)
from models.protocol.messages import (
    GrammarClose,
    GrammarReady,
    GrammarRefused,
    Masks,
)
from tests.cases.grammar import (
    NEVER_COMPILES,
    PADDED_VOCAB_SIZE,
)
from tests.harness.constraint import asking, config, opening

ROOT = Path(__file__).parents[3]


class Child:
    """A child process and the parent's end of its socket, without the parent's code."""

    def __init__(self) -> None:
        self.link, there = socket.socketpair()
        self.link.settimeout(20)
        with tempfile.TemporaryFile() as file, there:
            file.truncate(ProgressPage.NUM_BYTES)
            self.page = ProgressPage(file.fileno())
            fds = (there.fileno(), file.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deployments.constraint.child", *map(str, fds)],
                pass_fds=fds,
                cwd=ROOT,
            )
        self._splitter = FrameSplitter()
        self._entries: list[ChildEntry] = []
        self.numbers: list[int] = []  # of the answers received

    def send(self, message: object) -> None:
        self.link.sendall(to_frame(msgspec.msgpack.encode(message)))

    def receive(self) -> object:
        while not self._entries:
            data = self.link.recv(1 << 16)
            if not data:
                raise EOFError
            for frame in self._splitter.feed(data):
                self._entries += msgspec.msgpack.decode(frame, type=list[ChildEntry])
        number, entry = self._entries.pop(0)
        self.numbers.append(number)
        return entry

    def end(self) -> None:
        self.link.close()
        self.page.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.end()


def test_answers_in_order_and_ends_with_the_socket(child: Child, tokenizer_path: str) -> None:
    child.send(config(str(Path(tokenizer_path).parent)))
    assert child.receive() == ChildReady()
    close = GrammarClose(session_id="s", epoch=1)
    child.send([opening("s"), asking("s"), close])
    child.send([asking("s")])
    assert isinstance(child.receive(), GrammarReady)
    assert isinstance(child.receive(), Masks)
    assert child.receive() is None
    assert child.receive().reason == "unknown"  # type: ignore[union-attr]  # a MaskMiss
    progress = child.page.read()
    assert progress.num_taken == progress.serving.num_begun == 4
    assert progress.serving.number is progress.compiling.number is None
    assert child.numbers[1:] == [0, 1, 2, 3]
    child.process.send_signal(signal.SIGINT)  # Ctrl-C is the parent's business
    child.send([asking("s")])
    child.receive()
    child.link.close()
    assert child.process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"tokenizer_path": "/nowhere/tokenizer.json"}, "/nowhere/tokenizer.json"),
        ({"vocab_size": 100}, "vocab size too small"),
        ({"eos_ids": (PADDED_VOCAB_SIZE,)}, "eos_ids"),
    ],
    ids=["path", "vocab_size", "eos_ids"],
)
def test_a_config_that_cannot_be_served_is_said(
    child: Child, tokenizer_path: str, changes: dict[str, Any], part: str
) -> None:
    child.send(config(tokenizer_path, **changes))
    reply = child.receive()
    assert isinstance(reply, ChildFailed)
    assert part in reply.message
    assert child.process.wait(timeout=20) == 0


def test_masks_are_answered_while_a_grammar_compiles(child: Child, tokenizer_path: str) -> None:
    child.send(config(tokenizer_path))
    child.receive()
    child.send([opening("s")])
    assert isinstance(child.receive(), GrammarReady)
    child.send([opening("slow", NEVER_COMPILES), asking("slow"), asking("s")])
    assert isinstance(child.receive(), Masks)
    assert child.numbers[-1] == 3  # before those of the slow one
    give_up_at = time.monotonic() + 20
    while child.page.read().compiling.number != 1:
        assert time.monotonic() < give_up_at
    child.link.close()  # nobody is left to tell: the child ends within the compile
    assert child.process.wait(timeout=20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is on data memory: Linux")
def test_a_grammar_that_needs_too_much_memory_ends_the_child(
    child: Child, tokenizer_path: str
) -> None:
    child.send(config(tokenizer_path, memory_limit_mb=128, max_schema_bytes=1 << 23))
    child.receive()
    child.send([opening("small")])
    assert isinstance(child.receive(), GrammarReady)
    child.send([opening("s", {"enum": ["x" * 5_000_000]})])
    assert child.process.wait(timeout=20) == -signal.SIGABRT
    assert child.page.read().compiling.number == 1


def test_refusals_travel(child: Child, tokenizer_path: str) -> None:
    child.send(config(tokenizer_path, max_schema_bytes=100))
    child.receive()
    child.send([opening("s", {"enum": ["x" * 100]})])
    reply = child.receive()
    assert isinstance(reply, GrammarRefused)
    assert reply.is_client_error
    assert "limit is 100" in reply.message


def test_frames_are_cut_however_they_arrive() -> None:
    payloads = [b"", b"a", b"bc" * 300]
    stream = b"".join(to_frame(payload) for payload in payloads)
    for size in (1, 3, 7, len(stream)):
        splitter = FrameSplitter()
        found = [
            frame
            for start in range(0, len(stream), size)
            for frame in splitter.feed(stream[start : start + size])
        ]
        assert found == payloads


def test_reading_allocates_no_more_than_what_came() -> None:
    """A large buffer for every read, given back again, let the heap of a busy child grow."""
    here, there = socket.socketpair()
    with here, there:
        frames = FrameReader(there)
        here.sendall(to_frame(b"a" * 1000) + to_frame(b"b"))
        tracemalloc.start()
        try:
            assert frames.next() == b"a" * 1000
            assert frames.next() == b"b"
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 16_384
        here.close()
        assert frames.next() is None
