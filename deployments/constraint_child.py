"""A child process of the constraint service: one `GrammarHost` behind a socket.

Started as `python -m deployments.constraint_child SOCKET_FD PAGE_FD` by `constraint_process.py`.
It limits its own memory and arms an alarm before every message, so that it ends even when nobody
watches: a grammar that needs too much memory aborts it, one that never returns is ended by
SIGALRM without needing the interpreter. It ends when the socket closes.

Masks run at normal priority, because a model's pass waits for them: at nice 19 beside two busy
cores their 90th percentile was 80 ms instead of 0.2. A compile gets a thread of its own, whose
priority is lowered when it proves slow; the thread ends with it, so nothing has to be raised again.

Imports llguidance and msgspec, no torch, no transformers, no Ray: about 30 MB.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from deployments.constraint_pipe import (
    OUT_OF_MEMORY_EXIT,
    ChildEntry,
    ChildFailed,
    ChildReady,
    ConstraintConfig,
    FrameReader,
    ProgressPage,
    to_frame,
)
from models.grammar import GrammarCompiler, VocabularyInfo
from models.grammar_host import GrammarHost, HostLimits
from models.grammar_limits import SchemaLimits
from models.messages import ConstraintReply, ConstraintRequest, GrammarOpen

_SLOW_S = 0.05  # ordinary schemas compile in 1-10 ms
# The parent's deadline comes first; this one is for a parent that is gone or stuck.
_ALARM_FACTOR = 3.0


def main() -> None:
    """Serve until the parent closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; parents decide
    link = socket.socket(fileno=int(sys.argv[1]))
    page = ProgressPage(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    # A parent that is gone is no error: there is nobody to tell.
    with link, contextlib.suppress(ConnectionError, BrokenPipeError):
        try:
            _serve(link, page)
        except MemoryError:
            os._exit(OUT_OF_MEMORY_EXIT)


def _serve(link: socket.socket, page: ProgressPage) -> None:
    frames = FrameReader(link)
    first = frames.next()
    if first is None:
        return
    config = msgspec.msgpack.decode(first, type=ConstraintConfig)
    _limit_self(config)
    encoder = msgspec.msgpack.Encoder()
    try:
        compiler = load_compiler(config)
    except (OSError, ValueError) as error:
        link.sendall(to_frame(encoder.encode([ChildFailed(message=str(error))])))
        return
    link.sendall(to_frame(encoder.encode([ChildReady(row_bytes=compiler.row_bytes)])))
    limits = HostLimits(max_cached_grammars=config.cache_size, max_sessions=config.max_sessions)
    host = GrammarHost(compiler, limits)
    decoder = msgspec.msgpack.Decoder(list[ConstraintRequest])
    alarm_s = _ALARM_FACTOR * max(config.compile_timeout_s, config.mask_timeout_s)
    while (frame := frames.next()) is not None:
        replies: list[ChildEntry] = []
        for request in decoder.decode(frame):
            if replies and isinstance(request, GrammarOpen):  # may be slow: others need not wait
                link.sendall(to_frame(encoder.encode(replies)))
                replies = []
            signal.setitimer(signal.ITIMER_REAL, alarm_s)  # SIGALRM's default action ends us
            page.begin()
            replies.append(
                _answer_open(host, request, config.niceness)
                if isinstance(request, GrammarOpen)
                else host.answer(request)
            )
            page.finish()
        signal.setitimer(signal.ITIMER_REAL, 0)
        link.sendall(to_frame(encoder.encode(replies)))


def _answer_open(host: GrammarHost, request: GrammarOpen, niceness: int) -> ConstraintReply | None:
    """Answer in a thread, behind the others on this machine if it takes long."""
    replies: list[ConstraintReply | None] = []

    def work() -> None:
        try:
            replies.append(host.answer(request))
        except MemoryError:
            os._exit(OUT_OF_MEMORY_EXIT)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(_SLOW_S)
    if thread.is_alive() and thread.native_id is not None:
        with contextlib.suppress(OSError):  # priorities of threads are a Linux matter
            os.setpriority(os.PRIO_PROCESS, thread.native_id, niceness)
        thread.join()
    return replies[0]


def load_compiler(config: ConstraintConfig) -> GrammarCompiler:
    """The compiler for the configured tokenizer.

    Raises:
        OSError: the tokenizer file cannot be read.
        ValueError: it is not a tokenizer, or vocabulary size and eos ids do not fit it.
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


def _limit_self(config: ConstraintConfig) -> None:
    limit = config.memory_limit_mb << 20
    # Anonymous memory, not address space: reserved but unused ranges would count there.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
