"""Streams over HTTP that never rest, each checked against the text it must have.

The streams run in an event loop in a thread of their own. A stream repeats its case for as long as
the load runs. Every answer must be complete, equal its reference and, under a schema, validate.
Every wait of a stream for its next chunk, the first one included, is timed. `figures` returns the
worst waits that touched a stretch of time, afterwards or while it lasts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

from loadtest.client.answers import Answer, check_answer
from loadtest.client.cases import Case
from loadtest.client.http import ask, open_client
from loadtest.client.thread import LoadThread

_KEPT_WAIT_S = 0.02  # shorter waits between chunks are not worth remembering
_LONG_WAIT_S = 2.0  # longer ones are told with the event that they touched
REFUSALS = (429, 503)  # full; no target to be had in time
_GOING_ON_LIMIT_S = 60.0  # a stream that broke has its rest by then
_SILENCE_S = 6.0  # three heartbeats of a router: it is gone
_AFTER_FAILURE_S = 0.5  # a service that refuses is not to be hammered


@dataclass(frozen=True)
class Failure:
    """A request that did not do what it must."""

    case: str
    began_s: float  # time.monotonic
    ended_s: float
    reason: str
    status: int = 0  # the HTTP answer's; 0: there was none

    @property
    def is_refusal(self) -> bool:
        """True if the service refused at once for lack of room, before it sent any text."""
        return self.status in REFUSALS

    def __str__(self) -> str:
        return f"{self.case}, {self.ended_s - self.began_s:.1f} s: {self.reason}"


class _Wait(NamedTuple):
    """A wait for a chunk, by `time.monotonic`."""

    began_s: float
    ended_s: float
    is_first: bool  # for an answer's first chunk: a place in the queue and the prompt are in it


@dataclass(slots=True)
class _Stream:
    """One stream's clock: the wait it is in, and the waits it was in."""

    case: Case
    waiting_since_s: float = 0.0
    awaits_first: bool = True
    num_answers: int = 0
    waits: list[_Wait] = field(default_factory=list)

    def ask(self) -> float:
        """Note that a request is sent; return the time."""
        self.waiting_since_s, self.awaits_first = time.monotonic(), True
        return self.waiting_since_s

    def tick(self) -> None:
        """Note that a chunk has come."""
        wait = _Wait(self.waiting_since_s, time.monotonic(), self.awaits_first)
        if wait.ended_s - wait.began_s >= _KEPT_WAIT_S:
            self.waits.append(wait)
        self.waiting_since_s, self.awaits_first = wait.ended_s, False


class Load:
    """Requests that never rest between `start` and `stop`, each checked.

    Attributes:
        base_url: of the service; it may change while nothing runs.
        num_streams: requests at a time.
        num_breaks: streams that broke and went on elsewhere, so far.
    """

    num_streams = 0
    num_breaks = 0  # streams that broke and went on, so far

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._thread = LoadThread(type(self).__name__, self._run)

    @property
    def num_answers(self) -> int:
        """Requests that came to an end, well or not."""
        raise NotImplementedError

    @property
    def cpu_s(self) -> float:
        """CPU time of the load's own thread, once it has ended."""
        return self._thread.cpu_s

    def prepare(self) -> dict[str, Answer]:
        """Return what every stream answers undisturbed, which it is compared with from now on."""
        return {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let every request come to its end; see `LoadThread.stop`."""
        self._thread.stop()

    def wait_steady(self, limit_s: float) -> bool:
        """Wait until every stream has received something; False when that takes too long."""
        return True

    def figures(self, from_s: float, to_s: float) -> dict[str, float]:
        """Return how the streams did in a stretch of time, by `time.monotonic`."""
        return {}

    def waits(self, from_s: float, to_s: float) -> list[tuple[str, float, float]]:
        """(case, from, to) of each long wait that touched this stretch, seconds since it began."""
        return []

    def take_failures(self) -> list[Failure]:
        """Return the failures since the last call."""
        raise NotImplementedError

    async def _run(self) -> None:
        raise NotImplementedError


class FaultLoad(Load):
    """Runs one stream per case; `api_key` is sent with each request."""

    def __init__(self, base_url: str, cases: Sequence[Case], *, api_key: str = "") -> None:
        super().__init__(base_url)
        self._api_key = api_key
        self.num_streams = len(cases)
        self._references: dict[str, Answer] = {}
        self._streams = [_Stream(case) for case in cases]
        self._failures: list[Failure] = []

    @property
    def num_answers(self) -> int:
        """See `Load`."""
        return sum(stream.num_answers for stream in self._streams)

    def take_failures(self) -> list[Failure]:
        """See `Load`."""
        taken, self._failures = self._failures, []
        return taken

    def prepare(self) -> dict[str, Answer]:
        """Ask every case once, all at a time, while nothing fails; the answers are the references.

        Raises:
            RuntimeError: an answer is not one to compare with; the message says why.
        """
        cases = [stream.case for stream in self._streams]
        answers = asyncio.run(self._ask_all(cases))
        for case, answer in zip(cases, answers, strict=True):
            reason = check_answer(answer, schema=case.schema)
            if reason or not answer.text:
                raise RuntimeError(f"reference of {case.name}: {reason or 'no text'}")
            self._references[case.name] = answer
        return self._references

    def wait_steady(self, limit_s: float) -> bool:
        """See `Load`."""
        since_s = time.monotonic()
        while time.monotonic() - since_s < limit_s:
            if all(stream.waiting_since_s > since_s for stream in self._streams):
                return True
            time.sleep(0.02)
        return False

    def figures(self, from_s: float, to_s: float) -> dict[str, float]:
        """Return the longest waits that touched this stretch of time, open ones included.

        `pause_free_s` and `pause_constrained_s` are of free and of constrained streams.
        `longest_gap_s` is of any stream, but for the waits for an answer's first chunk.
        """
        longest = {"pause_free_s": 0.0, "pause_constrained_s": 0.0, "longest_gap_s": 0.0}
        for stream, wait in self._touched(from_s, to_s):
            names = ["pause_constrained_s" if stream.case.is_constrained else "pause_free_s"]
            names += [] if wait.is_first else ["longest_gap_s"]
            for name in names:
                longest[name] = max(longest[name], wait.ended_s - wait.began_s)
        return longest

    def waits(self, from_s: float, to_s: float) -> list[tuple[str, float, float]]:
        """See `Load`."""
        return [
            (stream.case.name, round(wait.began_s - from_s, 1), round(wait.ended_s - from_s, 1))
            for stream, wait in self._touched(from_s, to_s)
            if wait.ended_s - wait.began_s > _LONG_WAIT_S
        ]

    def _touched(self, from_s: float, to_s: float) -> list[tuple[_Stream, _Wait]]:
        """Return all waits that touched this stretch of time, open ones included."""
        found = []
        for stream in self._streams:
            now = _Wait(stream.waiting_since_s, time.monotonic(), stream.awaits_first)
            for wait in [*stream.waits, now]:
                if wait.began_s < to_s and wait.ended_s > from_s:
                    found.append((stream, wait))
        return found

    async def _ask_all(self, cases: Sequence[Case]) -> list[Answer]:
        async with open_client(self.base_url, api_key=self._api_key) as client:
            return list(await asyncio.gather(*(ask(client, case.body) for case in cases)))

    async def _run(self) -> None:
        key = self._api_key
        async with open_client(self.base_url, api_key=key, timeout_s=_SILENCE_S) as client:
            await asyncio.gather(*(self._repeat(client, stream) for stream in self._streams))

    async def _repeat(self, client: httpx.AsyncClient, stream: _Stream) -> None:
        case = stream.case
        while not self._thread.is_stopping:
            began_s = stream.ask()
            answer = await ask(client, case.body, on_event=stream.tick, goes_on_s=_GOING_ON_LIMIT_S)
            self.num_breaks += answer.num_breaks
            reason = check_answer(answer, schema=case.schema, known=self._references[case.name])
            if reason:
                ended_s = time.monotonic()
                self._failures.append(Failure(case.name, began_s, ended_s, reason, answer.status))
                await asyncio.sleep(_AFTER_FAILURE_S)
            stream.num_answers += 1
