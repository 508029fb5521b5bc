"""One child process of the constraint service, seen from the parent.

Sends requests as one frame per tick of the event loop, and hands out replies as they come. It ends
the child when it makes no progress, stopped or hanging. `on_death` is called exactly once for any
end of a child, with the unanswered requests. If the message that it was busy with may be the cause,
it is passed too.

Deadlines are wall-clock, but a child that had no CPU is not a hanging one. It gets
`_STARVED_FACTOR` times as long. A message may be the cause when the child ended itself within it
(memory limit, stack overflow, alarm, exception). It may also be the cause if it used CPU for a
tenth of the deadline that it exceeded. No message is blamed when a child was stopped or killed from
outside. Knows no grammars and no routing.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.constraint.pipe import (
    OUT_OF_MEMORY_EXIT,
    ChildEntry,
    ChildFailed,
    ChildReady,
    ChildReply,
    ChildRequest,
    ConstraintConfig,
    FrameSplitter,
    Progress,
    ProgressPage,
    Work,
    to_frame,
)
from deployments.serve.children import start_child
from deployments.serve.threads import HELD, are_stopped, first_thread, threads_of

SESSIONS = "deployments.constraint.child"
CANARY = "deployments.constraint.canary"
REWARDS = "deployments.constraint.reward_child"

Reply = Callable[[Any], None]  # with the kind of `ChildReply` that belongs to the request
_GRACE_S = 2.0  # for a child that is ending by itself
_BLAME_SHARE = 0.1  # part of the deadline as CPU time: low, for one that hangs on a busy machine
_STARVED_FACTOR = 5.0
_HAD_CPU = 0.5  # part of the deadline as CPU time: a message that had it and is not done hangs
# A compile may exceed `compile_timeout_s` by this: the canary ends a trial itself, and in a child
# with sessions a compile that was tried is only ever late for lack of CPU.
_CANARY_GRACE_S = 2.0
_COMPILE_GRACE_FACTOR = 4.0
_SELF_ENDED = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGALRM})


@dataclass(frozen=True)
class Pending:
    """A request without an answer yet."""

    request: ChildRequest
    reply: Reply


@dataclass(frozen=True)
class Death:
    """The end of a child: why it ended and what it had not answered."""

    unanswered: list[Pending]
    reason: str
    culprit: ChildRequest | None  # the message that may be to blame, if one is
    was_ready: bool


class _StallTimer:
    """Measures for how long something that should change has not changed."""

    def __init__(self, now: float) -> None:
        self._seen: object = None
        self._since = now

    def stalled_s(self, seen: object, now: float) -> float:
        """Seconds for which `seen` has been what it is; None: nothing has to change."""
        if seen is None or seen != self._seen:
            self._seen = seen
            self._since = now
        return now - self._since


class ChildProcess(asyncio.Protocol):
    """One child; not restartable. Create, `await launch()`, `send`, `await stop()`."""

    def __init__(
        self,
        config: ConstraintConfig,
        on_death: Callable[[Death], None],
        module: str = SESSIONS,
    ) -> None:
        self._config = config
        self._module = module
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[ChildEntry])
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._page: ProgressPage | None = None
        self._outbox: list[ChildRequest] = []
        self._pending: dict[int, Pending] = {}  # by number, in order
        self._num_sent = 0
        self._num_answered = 0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._launched_at = self._loop.time()
        self._serving = _StallTimer(self._launched_at)
        self._compiling = _StallTimer(self._launched_at)
        self._blamed: int | None = None  # number of the request it was killed for
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
                self._popen = await asyncio.to_thread(
                    start_child, self._module, *map(str, fds), fds=fds
                )
            except BaseException:
                here.close()  # a child that starts all the same ends with it
                raise
        here.setblocking(False)
        transport, _ = await self._loop.create_unix_connection(lambda: self, sock=here)
        self._transport = transport
        self._launched_at = self._loop.time()
        transport.write(to_frame(self._encoder.encode(self._config)))
        self._flush()

    async def ready(self) -> None:
        """Wait until the child is ready.

        Raises:
            ValueError: the child cannot serve with this config.
            ConnectionError: it ended before it was ready, or reached the start timeout.
        """
        await asyncio.shield(self._ready)

    def send(self, request: ChildRequest, reply: Reply) -> None:
        """Queue a request for this tick's frame; `reply` is called once, or `on_death` has
        the request."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(request)
        self._pending[self._num_sent] = Pending(request, reply)
        self._num_sent += 1

    def take_pending(self) -> list[Pending]:
        """Hand over the requests without an answer; from then on the caller must answer them."""
        pending, self._pending = list(self._pending.values()), {}
        return pending

    def check_deadlines(self) -> None:
        """End the child when its start, or what it is working on, takes too long."""
        if self._page is None or self._transport is None or self._kill_reason:
            return
        now = self._loop.time()
        if not self._ready.done():
            if now - self._launched_at > self._config.start_timeout_s:
                self._kill(f"not ready after {self._config.start_timeout_s} s (start_timeout_s)")
            return
        if self._pending and self.pid is not None and are_stopped(threads_of(self.pid)):
            self._kill("it is stopped, and owes an answer")
            return
        progress = self._page.read()
        self._check_serving(progress, now)
        self._check_compiling(progress.compiling, now)

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
            for number, entry in self._decoder.decode(frame):
                self._take(number, entry)

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish the child: it has closed its end and is gone or about to be."""
        self._end = self._loop.create_task(self._finish())

    # --- inner --------------------------------------------------------------------------------

    def _take(self, number: int, entry: ChildReply | ChildReady | ChildFailed | None) -> None:
        if isinstance(entry, ChildReady):
            self._ready.set_result(None)
        elif isinstance(entry, ChildFailed):
            self._kill_reason = entry.message
            self._ready.set_exception(ValueError(entry.message))
            self._ready.exception()  # retrieved here; `ready` may have no caller
        else:
            self._num_answered += 1
            pending = self._pending.pop(number)
            if entry is not None:
                pending.reply(entry)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing() or not self._outbox:
            return
        self._transport.write(to_frame(self._encoder.encode(self._outbox)))
        self._outbox = []

    def _check_serving(self, progress: Progress, now: float) -> None:
        """Check the thread that answers, where it is within a message or has some to begin."""
        work = progress.serving
        is_busy = work.number is not None or progress.num_taken < self._num_sent
        seen = (progress.num_taken, work, self._num_answered) if is_busy else None
        limit_s = self._config.mask_timeout_s
        stalled_s = self._serving.stalled_s(seen, now)
        if stalled_s <= limit_s:
            return
        cpu_s = self._cpu_s(work)
        if stalled_s > _STARVED_FACTOR * limit_s or cpu_s is None or cpu_s >= _HAD_CPU * limit_s:
            if cpu_s is not None and cpu_s >= _BLAME_SHARE * limit_s:
                self._blamed = work.number
            self._kill(f"no answer within {limit_s} s (mask_timeout_s)")

    def _check_compiling(self, work: Work, now: float) -> None:
        seen = work if work.number is not None else None
        limit_s = self._config.compile_timeout_s
        longest_s = (
            limit_s + _CANARY_GRACE_S if self._module == CANARY else _COMPILE_GRACE_FACTOR * limit_s
        )
        if self._compiling.stalled_s(seen, now) > longest_s:
            self._blamed = work.number if self._module == SESSIONS else None
            self._kill(f"no answer within {limit_s} s (compile_timeout_s)")

    def _cpu_s(self, work: Work) -> float | None:
        """CPU time of the first thread in its message; None: it is stopped, or it cannot be known.

        A thread that had none and is not stopped waits for a core.
        """
        thread = first_thread(self.pid)
        if thread is None or thread.state in HELD:
            return None
        return thread.cpu_s - work.cpu_ns_at_begin / 1e9 if work.number is not None else 0.0

    def _kill(self, reason: str) -> None:
        self._kill_reason = reason
        if self._popen is not None:
            self._popen.kill()  # also ends a stopped process

    async def _finish(self) -> None:
        """Reap the child and report why it ended."""
        assert self._popen is not None
        assert self._page is not None
        # A child that closed the socket by itself is ending; its exit status says why.
        grace_s = 0.0 if self._kill_reason else _GRACE_S
        status = await asyncio.to_thread(_reap, self._popen, grace_s)
        progress = self._page.read()
        self._page.close()
        was_ready = self._ready.done() and self._ready.exception() is None
        reason = self._kill_reason or _describe(status)
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(f"constraint child: {reason}"))
            self._ready.exception()
        unanswered = list(self._pending.values())
        culprit = self._pending.get(self._number_to_blame(status, progress))
        self._pending.clear()
        self._gone.set()
        request = culprit.request if culprit else None
        self._on_death(Death(unanswered, reason, request, was_ready))

    def _number_to_blame(self, status: int, progress: Progress) -> int:
        """Number of the request that may be the cause; -1: none."""
        if self._kill_reason:
            number = self._blamed
        elif status > 0 or -status in _SELF_ENDED:
            compiling, serving = progress.compiling.number, progress.serving.number
            number = serving if compiling is None else compiling
        else:
            number = None
        return -1 if number is None else number


def _reap(popen: subprocess.Popen[bytes], grace_s: float) -> int:
    """Wait for a process that is ending, then kill it; exit status as subprocess gives it."""
    try:
        return popen.wait(grace_s)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.wait()


def _describe(status: int) -> str:
    if status == OUT_OF_MEMORY_EXIT:
        return "memory limit reached"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"
