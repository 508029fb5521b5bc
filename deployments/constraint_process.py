"""One child process of the constraint service, seen from the parent.

Sends requests as one frame per tick of the event loop, hands replies out in order, and ends the
child when a message exceeds its deadline or the child makes no progress, stopped or hanging.
However a child ends, `on_death` is called exactly once, with what was left unanswered and, when
the message it was busy with is the cause, with that message.

A message is to blame when the child ended itself within it (memory limit, stack overflow,
alarm, exception), or used CPU for a tenth of the deadline it exceeded. A child that was stopped
or killed from outside, or got no CPU, blames nobody. Knows no grammars and no routing.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from deployments.constraint_pipe import (
    OUT_OF_MEMORY_EXIT,
    ChildEntry,
    ChildFailed,
    ChildReady,
    ConstraintConfig,
    FrameSplitter,
    Progress,
    ProgressPage,
    to_frame,
)
from models.messages import ConstraintReply, ConstraintRequest, GrammarOpen

Reply = Callable[[ConstraintReply], None]
_GRACE_S = 2.0  # for a child that is ending by itself
_BLAME_SHARE = 0.1  # of the deadline as CPU time: low, for one that hangs on a busy machine
_SELF_ENDED = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGALRM})


@dataclass(frozen=True)
class Pending:
    """A request without an answer yet."""

    request: ConstraintRequest
    reply: Reply


@dataclass(frozen=True)
class Death:
    """The end of a child: what it leaves behind and why."""

    unanswered: list[Pending]
    reason: str
    culprit: ConstraintRequest | None  # the message that is to blame, if one is
    was_ready: bool


class ChildProcess(asyncio.Protocol):
    """One child; not restartable. Create, `await launch()`, `send`, `await stop()`."""

    def __init__(self, config: ConstraintConfig, on_death: Callable[[Death], None]) -> None:
        self._config = config
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[ChildEntry])
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._page: ProgressPage | None = None
        self._outbox: list[ConstraintRequest] = []
        self._pending: deque[Pending] = deque()
        self._num_answered = 0
        self._ready: asyncio.Future[ChildReady] = self._loop.create_future()
        self._moved: tuple[Progress, int] | None = None
        self._moved_at = self._loop.time()
        self._kill_reason = ""
        self._end: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    @property
    def num_pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    @property
    def pid(self) -> int | None:
        """Process id, once launched."""
        return self._popen.pid if self._popen else None

    async def launch(self) -> None:
        """Start the process; it is not ready yet, but messages may be sent."""
        here, there = socket.socketpair()
        with tempfile.TemporaryFile() as file, there:
            file.truncate(ProgressPage.NUM_BYTES)
            self._page = ProgressPage(file.fileno())
            fds = (there.fileno(), file.fileno())
            try:
                self._popen = await asyncio.to_thread(_spawn, fds)
            except BaseException:
                here.close()  # a child that starts all the same ends with it
                raise
        here.setblocking(False)
        transport, _ = await self._loop.create_unix_connection(lambda: self, sock=here)
        self._transport = transport
        self._moved_at = self._loop.time()
        transport.write(to_frame(self._encoder.encode(self._config)))
        self._flush()

    async def ready(self) -> int:
        """Bytes of a mask row, once the child is ready.

        Raises:
            ValueError: the child cannot serve with this config.
            ConnectionError: it ended before it was ready, or reached the start timeout.
        """
        return (await asyncio.shield(self._ready)).row_bytes

    def send(self, request: ConstraintRequest, reply: Reply) -> None:
        """Queue a request for this tick's frame; `reply` is called once, or `on_death` tells."""
        if not self._pending:
            self._moved_at = self._loop.time()
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(request)
        self._pending.append(Pending(request, reply))

    def check_deadlines(self) -> None:
        """End the child when its current message, or its start, takes too long."""
        if self._page is None or self._transport is None or self._kill_reason:
            return
        now = self._loop.time()
        if not self._ready.done():
            if now - self._moved_at > self._config.start_timeout_s:
                self._kill(f"not ready after {self._config.start_timeout_s} s (start_timeout_s)")
            return
        progress = self._page.read()
        moved = (progress, self._num_answered)
        if moved != self._moved or not self._pending:
            self._moved = moved
            self._moved_at = now
            return
        limit_s, name = self._limit_of(self._current(progress))
        if now - self._moved_at > limit_s:
            self._kill(f"no answer within {limit_s} s ({name})")

    async def stop(self) -> None:
        """End the child; its unanswered requests go to `on_death`. Idempotent."""
        self._kill_reason = self._kill_reason or "the service stops"
        if self._transport is not None:
            self._transport.abort()
            await self._gone.wait()

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand out replies."""
        for frame in self._splitter.feed(data):
            for entry in self._decoder.decode(frame):
                self._take(entry)

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has closed its end: it is gone or about to be."""
        self._end = self._loop.create_task(self._finish())

    # --- inner --------------------------------------------------------------------------------

    def _take(self, entry: ChildEntry) -> None:
        if isinstance(entry, ChildReady):
            self._ready.set_result(entry)
            self._moved_at = self._loop.time()
        elif isinstance(entry, ChildFailed):
            self._kill_reason = entry.message
            self._ready.set_exception(ValueError(entry.message))
            self._ready.exception()  # retrieved here; `ready` may have no caller
        else:
            self._num_answered += 1
            pending = self._pending.popleft()
            if entry is not None:
                pending.reply(entry)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing() or not self._outbox:
            return
        self._transport.write(to_frame(self._encoder.encode(self._outbox)))
        self._outbox = []

    def _current(self, progress: Progress) -> ConstraintRequest:
        """The message the child is in, or would take next."""
        number = progress.num_finished - self._num_answered
        return self._pending[min(max(number, 0), len(self._pending) - 1)].request

    def _limit_of(self, request: ConstraintRequest) -> tuple[float, str]:
        if isinstance(request, GrammarOpen):
            return self._config.compile_timeout_s, "compile_timeout_s"
        return self._config.mask_timeout_s, "mask_timeout_s"

    def _kill(self, reason: str) -> None:
        self._kill_reason = reason
        if self._popen is not None and self._popen.returncode is None:
            os.kill(self._popen.pid, signal.SIGKILL)  # also ends a stopped process

    async def _finish(self) -> None:
        """Reap the child and tell why it ended."""
        assert self._popen is not None
        assert self._page is not None
        # One that closed the socket by itself is ending; how it ends tells why.
        grace_s = 0.0 if self._kill_reason else _GRACE_S
        status, usage = await asyncio.to_thread(_reap, self._popen, grace_s)
        progress = self._page.read()
        self._page.close()
        was_ready = self._ready.done() and self._ready.exception() is None
        reason = self._kill_reason or _describe(status)
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(f"constraint child: {reason}"))
            self._ready.exception()
        unanswered = list(self._pending)
        culprit = None
        if unanswered and progress.is_busy and self._is_to_blame(status, usage, progress):
            culprit = self._current(progress)
        self._pending.clear()
        self._gone.set()
        self._on_death(Death(unanswered, reason, culprit, was_ready))

    def _is_to_blame(self, status: int, usage: resource.struct_rusage, progress: Progress) -> bool:
        if not self._kill_reason:
            return status > 0 or -status in _SELF_ENDED
        cpu_s = usage.ru_utime + usage.ru_stime - progress.cpu_ns_at_begin / 1e9
        return cpu_s >= _BLAME_SHARE * self._limit_of(self._current(progress))[0]


def _spawn(fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start a child that inherits `fds` and finds the same packages."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "MALLOC_ARENA_MAX": "2",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "deployments.constraint_child", *(str(fd) for fd in fds)],
        pass_fds=fds,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def _reap(popen: subprocess.Popen[bytes], grace_s: float) -> tuple[int, resource.struct_rusage]:
    """Wait for a process that is ending, then kill it; exit status as subprocess gives it."""
    give_up_at = time.monotonic() + grace_s
    pid, status, usage = os.wait4(popen.pid, os.WNOHANG)
    while not pid and time.monotonic() < give_up_at:
        time.sleep(0.005)
        pid, status, usage = os.wait4(popen.pid, os.WNOHANG)
    if not pid:
        os.kill(popen.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        _, status, usage = os.wait4(popen.pid, 0)
    popen.returncode = os.waitstatus_to_exitcode(status)
    return popen.returncode, usage


def _describe(status: int) -> str:
    if status == OUT_OF_MEMORY_EXIT:
        return "memory limit reached"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"
