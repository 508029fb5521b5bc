"""The one thread that drives an engine: take what arrived, form a batch, step, answer.

The same loop runs in a leader process on sockets (`rank.py`) and in a test or notebook on queues
(`local/pool.py`). An `EnginePort` is the difference. It knows neither Ray nor ZMQ.

Only leased sessions are served. An `Open` without a lease is dropped, so that a late message cannot
bring back a session that was released. The end of leases is described in `link/leases.py`. A
session that the engine works for, or whose message came during a long step, is not idle. Apart from
`run` and `tick`, every method may be called from another thread. An exception out of `step` is the
engine's death and leaves `run`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from deployments.engine.step_times import StepTimes
from deployments.link.leases import LeaseBook
from models.engine.load import EngineLoad
from models.protocol.messages import EngineQuestion, EngineReply, EngineRequest, Failed, Open

logger = logging.getLogger(__name__)

_MAX_FORMING_S = 1.0  # a batch is never formed for longer, whatever the engine asks for
_LOOK_PERIOD_S = 0.5  # the engine's load is looked at this often; its own thread must do that
_LONG_STEP_S = 2.0  # no shorter step is one that may hang
# A router that never sends a message has most likely gone: Serve loses one of some hundred cancels
# that arrive while a lease is being granted. Long enough for a router that has grammars compiled.
_FIRST_MESSAGE_S = 30.0
# Errors that a message's values can cause in Python; errors of a device are not among them.
_REFUSALS = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)


class Engine(Protocol):
    """The part of `models.engine.draft` and `models.engine.target` that the loop needs."""

    def submit(self, message: EngineRequest, reply_to: object) -> None:
        """Take a message; its replies come out of later steps, addressed to `reply_to`."""
        ...

    def step(self) -> list[tuple[object, EngineReply]]:
        """Do one unit of work; the replies that are ready."""
        ...

    @property
    def has_work(self) -> bool:
        """True if `step` would do something."""
        ...

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that sessions hold. May be read from any thread."""
        ...

    @property
    def pass_rows(self) -> int:
        """Rows of the newest step's pass, 0 for none. May be read from any thread."""
        ...

    def wait_s(self, now: float) -> float:
        """Return how long the next step should still wait for more sessions to arrive, seconds."""
        ...

    def idle_s(self) -> dict[str, float]:
        """Seconds since each session's last message or answer; 0 while it is being worked for."""
        ...

    def load(self) -> EngineLoad:
        """Return the engine's load: its sessions, blocks and times."""
        ...

    def close(self, session_id: str) -> None:
        """Forget a session. Idempotent."""
        ...


class EnginePort(Protocol):
    """The source and destination of an engine's messages."""

    def receive(self, timeout_s: float) -> Iterable[tuple[object, EngineRequest]]:
        """Messages with who sent them; waits up to `timeout_s` for the first, or for `wake`."""
        ...

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        """Deliver the replies of one tick. Never blocks."""
        ...

    def wake(self) -> None:
        """End a wait of `receive` early, from any thread; it may do nothing."""
        ...


@dataclass(frozen=True, slots=True)
class LoopStats:
    """Counters of a loop since its start."""

    num_ticks: int  # turns of the loop, idle ones too: rises while the thread is alive
    num_steps: int
    num_sessions: int
    num_used_blocks: int  # KV blocks that sessions hold
    is_stepping: bool  # in a step now
    step_age_s: float  # for how long, if so
    most_step_s: float = math.inf  # that such a step may take, by those before; infinite: not known
    load: EngineLoad = field(default_factory=EngineLoad)  # the last look at the engine
    looked_at_s: float = 0.0  # when that was, by the loop's clock
    num_leases: int = 0  # ever granted


class EngineLoop:
    """Drives `engine` from `port` until `stop`.

    Args:
        engine: owned by the thread in `run`.
        port: likewise, apart from `wake`.
        idle_timeout_s: a leased session that is silent for longer is closed and its lease ended.
        poll_s: longest wait for messages before the loop looks for a stop or idle sessions.
        clock: seconds, monotonic; the same clock as the engine's.
        keep_alive: called in every turn, from the engine's thread, so that followers see a leader
            that is idle and not one that is lost.

    Attributes:
        leases: of sessions; `EngineLoop.release` ends one, and wakes the loop for that.
    """

    def __init__(
        self,
        engine: Engine,
        port: EnginePort,
        *,
        idle_timeout_s: float,
        poll_s: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
        keep_alive: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._port = port
        self._poll_s = poll_s
        self._clock = clock
        self._keep_alive = keep_alive
        self._stopping = threading.Event()
        self.leases = LeaseBook(
            idle_timeout_s=idle_timeout_s,
            first_message_s=_FIRST_MESSAGE_S,
            idle_s=engine.idle_s,
            clock=clock,
        )
        self._num_ticks = 0
        self._num_steps = 0
        self._step_started_s: float | None = None
        self._step_times = StepTimes()
        self._look = (engine.load(), clock())  # replaced as a whole: other threads read it

    # --- from any thread

    def refusal(self) -> str:
        """Return why no lease should be granted now, or ""."""
        started_s = self._step_started_s
        age_s = 0.0 if started_s is None else self._clock() - started_s
        if age_s <= _LONG_STEP_S or age_s <= self._step_times.most_s(self._engine.pass_rows):
            return ""
        return f"one pass takes {age_s:.1f} s, far longer than others: it may hang"

    def release(self, session_id: str, lease_id: int) -> None:
        """End a lease and close its session, unless the session has a newer lease. Idempotent."""
        self.leases.release(session_id, lease_id)
        self._port.wake()

    def stop(self) -> None:
        """Make `run` return soon. Idempotent."""
        self._stopping.set()
        self._port.wake()

    def stats(self) -> LoopStats:
        """Return a snapshot of the counters."""
        started_s = self._step_started_s
        load, looked_at_s = self._look
        return LoopStats(
            num_ticks=self._num_ticks,
            num_steps=self._num_steps,
            num_sessions=len(self.leases),
            num_leases=self.leases.num_granted,
            num_used_blocks=self._engine.num_used_blocks,
            is_stepping=started_s is not None,
            step_age_s=0.0 if started_s is None else self._clock() - started_s,
            most_step_s=self._step_times.most_s(self._engine.pass_rows),
            load=load,
            looked_at_s=looked_at_s,
        )

    # --- in the engine's thread

    def run(self) -> None:
        """Turn until `stop`; what the engine raises comes out of here."""
        while not self._stopping.is_set():
            self.tick()
        self._close_freed()  # leases may have ended after the last tick

    def tick(self) -> None:
        """Make one turn: messages in, at most one step, replies out."""
        self._num_ticks += 1
        if self._keep_alive is not None:
            self._keep_alive()
        self._take(0.0 if self._engine.has_work else self._poll_s)
        self._end_idle()  # after the messages: those that came during a long step must count
        self._look_at_load()
        if not self._engine.has_work:
            return
        self._form_batch()
        self._step_started_s = started_s = self._clock()
        replies = self._engine.step()
        self._step_started_s = None
        self._step_times.note(self._engine.pass_rows, self._clock() - started_s)
        self._num_steps += 1
        if replies:
            self._port.send(replies)
            self.leases.touch(reply.session_id for _, reply in replies)

    def _form_batch(self) -> None:
        """Wait as long as the engine wants for sessions that are about to come back."""
        began_s = now_s = self._clock()
        while now_s - began_s < _MAX_FORMING_S and self._engine.has_work:
            wait_s = self._engine.wait_s(now_s)
            if wait_s <= 0.0:
                return
            self._take(min(wait_s, _MAX_FORMING_S))
            now_s = self._clock()

    def _take(self, timeout_s: float) -> None:
        messages = self._port.receive(timeout_s)
        self._close_freed()  # first: a session leased anew may be opening again right here
        for sender, message in messages:
            if isinstance(message, Open) and message.session_id not in self.leases:
                continue
            try:
                self._engine.submit(message, sender)
            except _REFUSALS as error:
                # A peer's message must not end the process that holds everybody's cache.
                logger.exception(
                    "session %s: message refused",
                    message.session_id,
                    extra={"session_id": message.session_id},
                )
                if isinstance(message, EngineQuestion):
                    self._port.send([(sender, _invalid(message, error))])
            self.leases.touch((message.session_id,))

    def _end_idle(self) -> None:
        for session_id in self.leases.end_idle():
            logger.info(
                "session %s: idle, lease ended", session_id, extra={"session_id": session_id}
            )

    def _look_at_load(self) -> None:
        now_s = self._clock()
        if now_s >= self._look[1] + _LOOK_PERIOD_S:
            self._look = (self._engine.load(), now_s)

    def _close_freed(self) -> None:
        for session_id in self.leases.take_freed():
            self._engine.close(session_id)


def _invalid(message: EngineQuestion, error: Exception) -> Failed:
    return Failed(
        session_id=message.session_id, seq=message.seq, code="invalid", message=str(error)
    )
