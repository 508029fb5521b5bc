"""Engines that compute nothing and take simulated time: batches, draft steps, answers.

The batch is formed by the code that serves (`models.scheduler.batch_window`), driven with simulated
seconds. A `Machine` gives the time of a pass or a step. Times are milliseconds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from models.costs.pass_times import PassTimes
from models.protocol.messages import Timing
from models.scheduler.batch_window import BatchWindow


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The durations of a machine: a pass by rows and sessions, a draft step by sessions, links."""

    pass_ms: Callable[[int, int], float]
    step_ms: Callable[[int], float]
    net_ms: float  # one way
    router_ms: float = 0.1  # a router's own work on a message; it works on one at a time
    noise: float = 0.03  # relative standard deviation of passes and steps


class Events:
    """A queue of events with no clock but its own."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Have `action` happen in `delay_ms`."""
        self._num_events += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._num_events, action))

    def run(self, until_ms: float) -> None:
        """Let everything happen that is due by `until_ms`."""
        while self._queue and self._queue[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = until_ms


VerdictSink = Callable[[int, Timing, bool], None]  # part, timing, is_last
ProposalSink = Callable[[int, Timing, float], None]  # tokens drafted, timing, time of a step


@dataclass(slots=True)
class _VerifyJob:
    num_draft: int
    steps_left: int
    answer: VerdictSink
    since_ms: float
    part: int = 0


class SimulatedTarget:
    """Passes over whatever is there when the forming window closes."""

    def __init__(self, events: Events, machine: Machine, random_: random.Random) -> None:
        self._events = events
        self._machine = machine
        self._random = random_
        self._times = PassTimes()
        self._forming = BatchWindow(self._times)
        self._jobs: dict[str, _VerifyJob] = {}
        self._is_busy = False
        self._num_kicks = 0
        self.batch_sizes: list[int] = []

    def verify(
        self, session_id: str, num_draft: int, run_on: int, away_ms: float, answer: VerdictSink
    ) -> None:
        """Take a `Verify` of `num_draft` tokens; its sender had the last answer for `away_ms`."""
        now_ms = self._events.now_ms
        self._forming.note_message(session_id, now_ms / 1e3, 1 + num_draft, away_ms / 1e3)
        self._jobs[session_id] = _VerifyJob(num_draft, run_on, answer, now_ms)
        self._kick()

    def forget(self, session_id: str) -> None:
        """End the session."""
        self._forming.forget(session_id)
        self._jobs.pop(session_id, None)
        self._kick()

    def _kick(self) -> None:
        self._num_kicks += 1
        if self._is_busy or not self._jobs:
            return
        wait_s = self._forming.wait_s(self._events.now_ms / 1e3)
        if wait_s > 0.0:
            kick = self._num_kicks
            self._events.after(wait_s * 1e3 + 1e-6, lambda: self._kick_again(kick))
            return
        self._is_busy = True
        jobs = dict(self._jobs)
        num_rows = sum(1 + job.num_draft for job in jobs.values())
        pass_ms = _noisy(self._machine.pass_ms(num_rows, len(jobs)), self._machine, self._random)
        self.batch_sizes.append(len(jobs))
        self._events.after(pass_ms, lambda: self._end_pass(jobs, num_rows, pass_ms))

    def _kick_again(self, kick: int) -> None:
        if kick == self._num_kicks:  # nothing came since
            self._kick()

    def _end_pass(self, jobs: dict[str, _VerifyJob], num_rows: int, pass_ms: float) -> None:
        self._is_busy = False
        now_ms = self._events.now_ms
        self._times.note(num_rows, pass_ms / 1e3, now_ms / 1e3)
        self._forming.note_pass(pass_ms / 1e3)
        for session_id, job in jobs.items():
            if self._jobs.get(session_id) is not job:
                continue
            is_last = job.steps_left == 0
            timing = Timing(
                queue_ms=max(0.0, now_ms - job.since_ms - pass_ms),
                pass_ms=pass_ms,
                num_rows=num_rows,
                num_sessions=len(jobs),
            )
            answer, part = job.answer, job.part
            job.part += 1
            job.steps_left -= 1
            job.num_draft = 0
            job.since_ms = now_ms
            if is_last:
                del self._jobs[session_id]
                self._forming.note_answer(session_id, now_ms / 1e3)
            else:
                self._forming.note_step(session_id)
            answer(part, timing, is_last)
        self._kick()


@dataclass(slots=True)
class _DraftJob:
    num_wanted: int
    answer: ProposalSink
    since_ms: float
    num_drafted: int = 0
    pass_ms: float = 0.0


@dataclass(slots=True)
class SimulatedDraft:
    """Steps over whatever is there; sessions join and leave between steps."""

    events: Events
    machine: Machine
    random_: random.Random
    _jobs: dict[str, _DraftJob] = field(default_factory=dict)
    _is_busy: bool = False
    _step_ms: float = 0.0

    def propose(self, session_id: str, num_draft_tokens: int, answer: ProposalSink) -> None:
        """Take a `Propose`; a newer one of the same session takes its place."""
        self._jobs[session_id] = _DraftJob(num_draft_tokens, answer, self.events.now_ms)
        self._kick()

    def forget(self, session_id: str) -> None:
        """End the session."""
        self._jobs.pop(session_id, None)

    def _kick(self) -> None:
        if self._is_busy or not self._jobs:
            return
        self._is_busy = True
        jobs = dict(self._jobs)
        step_ms = _noisy(self.machine.step_ms(len(jobs)), self.machine, self.random_)
        self.events.after(step_ms, lambda: self._end_step(jobs, step_ms))

    def _end_step(self, jobs: dict[str, _DraftJob], step_ms: float) -> None:
        self._is_busy = False
        self._step_ms += (0.2 if self._step_ms else 1.0) * (step_ms - self._step_ms)
        for session_id, job in jobs.items():
            if self._jobs.get(session_id) is not job:
                continue
            job.num_drafted += 1
            job.pass_ms += step_ms
            if job.num_drafted == job.num_wanted:
                del self._jobs[session_id]
                timing = Timing(
                    queue_ms=max(0.0, self.events.now_ms - job.since_ms - job.pass_ms),
                    pass_ms=job.pass_ms,
                    num_sessions=len(jobs),
                )
                job.answer(job.num_drafted, timing, self._step_ms)
        self._kick()


def _noisy(time_ms: float, machine: Machine, random_: random.Random) -> float:
    return time_ms * max(0.5, random_.gauss(1.0, machine.noise))
