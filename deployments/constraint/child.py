"""A child process of the constraint service: one `GrammarHost` that answers on a socket.

Started as `python -m deployments.constraint.child SOCKET_FD PAGE_FD` by `process.py`. It has two
threads. One answers, at normal priority, because a model's pass waits for masks. The 90th
percentile of masks was 80 ms instead of 0.2 at nice 19 with both cores busy. The other compiles, at
a lower priority, while llguidance releases the interpreter. So masks are answered while a grammar
compiles. Messages of a session whose grammar is being compiled wait for it.

It limits its own memory and stays well below (`memory`). It arms an alarm before every message, so
that it ends even when its parent is gone. It ends when the socket closes.

Imports llguidance and msgspec, no torch, no transformers, no Ray: about 30 MB.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from deployments.constraint.memory import MemoryGuard, limit_memory
from deployments.constraint.pipe import (
    OUT_OF_MEMORY_EXIT,
    ChildEntry,
    ChildFailed,
    ChildReady,
    ConstraintConfig,
    FrameReader,
    Lane,
    ProgressPage,
    to_frame,
)
from models.grammar.charsets import warm_up
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.limits import HostLimits, SchemaLimits
from models.grammar.state import CompiledGrammar
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Grammar,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    Masks,
)

# The parent's deadline comes first; this one is for a parent that is gone or stuck.
_ALARM_FACTOR = 30.0
_MAX_REPLY_BYTES = 1 << 20  # mask rows gathered before they are sent


Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class Child(Generic[Loaded]):
    """The parts of a child that is ready to serve; `loaded` is the object that it serves with."""

    link: socket.socket
    frames: FrameReader
    page: ProgressPage
    config: ConstraintConfig
    loaded: Loaded

    def send(self, entries: list[ChildEntry]) -> None:
        """Send answers as one frame."""
        _send(self.link, entries)


def run_child(
    load: Callable[[ConstraintConfig], Loaded], serve: Callable[[Child[Loaded]], None]
) -> None:
    """Take up the socket and the page named on the command line, and serve until it closes.

    Args:
        load: what the child serves with; OSError or ValueError: it cannot serve.
        serve: until the socket closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; parents decide
    link = socket.socket(fileno=int(sys.argv[1]))
    page = ProgressPage(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    # A parent that is gone is no error: an answer would have no reader.
    with link, contextlib.suppress(ConnectionError, BrokenPipeError):
        try:
            _begin(link, page, load, serve)
        except MemoryError:
            os._exit(OUT_OF_MEMORY_EXIT)


def _begin(
    link: socket.socket,
    page: ProgressPage,
    load: Callable[[ConstraintConfig], Loaded],
    serve: Callable[[Child[Loaded]], None],
) -> None:
    frames = FrameReader(link)
    first = frames.next()
    if first is None:
        return
    config = msgspec.msgpack.decode(first, type=ConstraintConfig)
    try:
        loaded = load(config)
    except (OSError, ValueError) as error:
        _send(link, [(0, ChildFailed(message=str(error)))])
        return
    _send(link, [(0, ChildReady())])
    serve(Child(link, frames, page, config, loaded))


def _send(link: socket.socket, entries: list[ChildEntry]) -> None:
    link.sendall(to_frame(msgspec.msgpack.encode(entries)))


def load_compiler(config: ConstraintConfig) -> GrammarCompiler:
    """Load the compiler for the tokenizer, and limit the memory of this process from now on.

    Raises:
        OSError: the tokenizer file cannot be read.
        ValueError: it is not a tokenizer, or vocabulary size and eos ids do not fit it.
    """
    limit_memory(config.memory_limit_mb << 20)
    compiler = compiler_of(config)
    warm_up()
    return compiler


def compiler_of(config: ConstraintConfig) -> GrammarCompiler:
    """Make the compiler for the tokenizer of a config.

    Raises:
        OSError, ValueError: as `load_compiler`.
    """
    path = Path(config.tokenizer_path)
    if path.is_dir():
        path = path / "tokenizer.json"
    return GrammarCompiler(
        VocabularyInfo(
            tokenizer_json=path.read_text(encoding="utf-8"),
            vocab_size=config.vocab_size,
            eos_ids=tuple(config.eos_ids),
        ),
        SchemaLimits(max_schema_bytes=config.max_schema_bytes),
    )


def lower_priority(niceness: int, thread_id: int = 0) -> None:
    """Raise the nice value of a thread (0: this process) by `niceness`, up to the limit of 19."""
    with contextlib.suppress(OSError):  # priorities of threads are a Linux matter
        now = os.getpriority(os.PRIO_PROCESS, thread_id)
        os.setpriority(os.PRIO_PROCESS, thread_id, min(now + niceness, 19))


class _CompileThread:
    """Compiles one grammar after the other; `file_descriptor` is readable when one is done."""

    def __init__(self, compiler: GrammarCompiler, lane: Lane, niceness: int) -> None:
        self._compiler = compiler
        self._lane = lane
        self._niceness = niceness
        self._jobs: queue.SimpleQueue[tuple[int, Grammar]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Grammar, CompiledGrammar | UnsupportedGrammar, float]]
        self._done = queue.SimpleQueue()
        self.file_descriptor, self._bell = os.pipe()
        threading.Thread(target=self._run, name="compile", daemon=True).start()

    def submit(self, number: int, grammar: Grammar) -> None:
        """Compile `grammar`, for the request of this number."""
        self._jobs.put((number, grammar))

    def take(self) -> tuple[Grammar, CompiledGrammar | UnsupportedGrammar, float]:
        """Take a finished grammar, and the milliseconds of CPU time it took."""
        os.read(self.file_descriptor, 1)
        return self._done.get()

    def _run(self) -> None:
        lower_priority(self._niceness, threading.get_native_id())
        while True:
            number, grammar = self._jobs.get()
            self._lane.begin(number)
            started_s = time.thread_time()
            made: CompiledGrammar | UnsupportedGrammar
            try:
                made = self._compiler.compile(grammar)
            except UnsupportedGrammar as refusal:
                made = refusal
            except MemoryError:
                os._exit(OUT_OF_MEMORY_EXIT)
            self._lane.finish()
            self._done.put((grammar, made, max(1e3 * (time.thread_time() - started_s), 1e-3)))
            os.write(self._bell, b".")


class _SessionServer:
    """The thread that answers: requests in their order, those of a session whose grammar is being
    compiled after that."""

    def __init__(self, child: Child[GrammarCompiler]) -> None:
        config = child.config
        self._child = child
        self._page = child.page
        self._decoder = msgspec.msgpack.Decoder(list[ConstraintRequest])
        limits = HostLimits(max_cached_grammars=config.cache_size, max_sessions=config.max_sessions)
        self._host = GrammarHost(child.loaded, limits)
        self._memory = MemoryGuard(
            self._host, config.memory_limit_mb << 20, config.compile_memory_mb << 20
        )
        self._thread = _CompileThread(child.loaded, child.page.compiling, config.niceness)
        self._alarm_s = _ALARM_FACTOR * config.mask_timeout_s
        self._num_requests = 0
        # Requests that wait for a grammar, by it and in order; and which sessions those are of.
        self._waiting: dict[Grammar, list[tuple[int, ConstraintRequest]]] = {}
        self._waits_for: dict[str, Grammar] = {}
        self._replies: list[ChildEntry] = []
        self._num_reply_bytes = 0

    def run(self) -> None:
        """Serve until the parent closes the socket."""
        link, bell = self._child.link, self._thread.file_descriptor
        poller = select.poll()
        poller.register(link, select.POLLIN)
        poller.register(bell, select.POLLIN)
        frames: list[bytes] | None = self._child.frames.ready()  # that came with the first
        while frames is not None:
            for frame in frames:
                self._take_frame(frame)
            self._flush()
            self._memory.look()
            ready = dict(poller.poll())
            if bell in ready:
                self._take_compiled()
            frames = self._child.frames.take() if link.fileno() in ready else []

    def _take_frame(self, frame: bytes) -> None:
        requests = self._decoder.decode(frame)
        self._page.take(len(requests))
        for request in requests:
            self._take(self._num_requests, request)
            self._num_requests += 1

    def _take(self, number: int, request: ConstraintRequest) -> None:
        grammar = self._waits_for.get(request.session_id)
        if grammar is None and isinstance(request, GrammarOpen) and self._host.lacks(request):
            grammar = request.grammar
            if grammar not in self._waiting:
                refusal = self._memory.refusal()
                if refusal:
                    self._reply(number, _refused(request, refusal))
                    return
                self._waiting[grammar] = []
                self._thread.submit(number, grammar)
        if grammar is None:
            self._answer(number, request)
            return
        self._waits_for[request.session_id] = grammar
        self._waiting[grammar].append((number, request))

    def _take_compiled(self) -> None:
        grammar, made, compile_ms = self._thread.take()
        self._host.put(grammar, made)
        requests = self._waiting.pop(grammar)
        for _, request in requests:
            self._waits_for.pop(request.session_id, None)
        is_first = True
        for number, request in requests:
            # A session's next grammar may be another one: then the rest of it waits for that.
            if is_first:
                self._answer(number, request, compile_ms)
            else:
                self._take(number, request)
            is_first = False

    def _answer(self, number: int, request: ConstraintRequest, compile_ms: float = 0.0) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._alarm_s)  # SIGALRM's default action ends us
        self._page.serving.begin(number)
        reply = self._host.answer(request)
        self._page.serving.finish()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if compile_ms and isinstance(reply, GrammarReady):
            reply = msgspec.structs.replace(reply, compile_ms=compile_ms)
        self._reply(number, reply)

    def _reply(self, number: int, reply: ConstraintReply | None) -> None:
        self._replies.append((number, reply))
        self._num_reply_bytes += len(reply.rows) if isinstance(reply, Masks) else 0
        if self._num_reply_bytes > _MAX_REPLY_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._replies:
            self._child.send(self._replies)
            self._replies = []
            self._num_reply_bytes = 0


def _refused(request: ConstraintRequest, message: str) -> GrammarRefused:
    return GrammarRefused(session_id=request.session_id, message=message, is_client_error=False)


if __name__ == "__main__":
    run_child(load_compiler, lambda child: _SessionServer(child).run())
