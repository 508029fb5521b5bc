"""Requests to simulated routers: what each asks, how its reader leaves, and what it must get."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from deployments.ingress.quarantine import Quarantine
from loadtest.frame.stages import NoText
from loadtest.fuzz.failures.cluster import Links
from loadtest.fuzz.failures.model import EOS_ID, VOCAB_SIZE, expected, expected_choice
from loadtest.fuzz.failures.network import Network
from models.protocol.errors import (
    LinkLost,
    MaskUnavailable,
    Overloaded,
    ReplicasLost,
    ServingError,
    Unavailable,
)
from models.protocol.messages import Grammar, Sampling
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits
from router.services import Services
from router.types import Delta, Finished, GenerationRequest, SpeculationSettings

LIMITS = SessionLimits(
    queue_wait_s=5.0,
    failover_s=8.0,
    max_losses=3,
    first_token_s=4.0,
    token_gap_s=2.0,
    queue_timeout_s=20.0,
    draft_ms=100.0,
    resend_interval_s=0.5,
    rejoin_interval_s=0.05,
)
MAX_PROMPT, MAX_TOKENS = 24, 14
_MAX_EVENTS = 20
_LOST = ("target", "constraint")
_CHOICES = ((1, 2), (1, 2, 3), (7,), (8, 4, 4, 4, 9, 3), (8, 4, 5))
_BUSY = re.compile(r"no (\w+) replica granted a lease within (\S+) s: (all replicas are busy)?")
_FOUND_S = 4.0  # Serve has asked a replica sooner, even if others do not answer
_FAILURES = {kind.code for kind in (Unavailable, MaskUnavailable, ReplicasLost, Overloaded)}


def longest_s(max_tokens: int) -> float:
    """Return the longest that a session may take: the sum of its limits, part by part."""
    a_loss = LIMITS.failover_s + LIMITS.first_token_s + LIMITS.token_gap_s
    a_token = LIMITS.queue_timeout_s + 4 * (LIMITS.token_gap_s + LIMITS.failover_s)
    return 2 * LIMITS.queue_wait_s + 2 * LIMITS.max_losses * a_loss + max_tokens * a_token


@dataclass(slots=True)
class Router:
    """One router."""

    links: Links
    services: Services
    generator: SpeculativeGenerator
    quarantine: Quarantine


def drawn_request(rng: random.Random, name: str, shared: Sequence[int]) -> GenerationRequest:
    """Draw a request; its prompt may begin as others do."""
    num_shared, num_own = rng.choice((0, 5, 16)), rng.randint(1, MAX_PROMPT - 16)
    prompt = [*shared[:num_shared], *(rng.randrange(1, VOCAB_SIZE) for _ in range(num_own))]
    sampling = Sampling(temperature=rng.choice((0.0, 0.0, 1.0)), seed=rng.randrange(1 << 32))
    is_choice = rng.random() < 0.1
    return GenerationRequest(
        request_id=name,
        prompt_ids=tuple(prompt),
        sampling=sampling,
        eos_ids=(EOS_ID,),
        max_tokens=rng.randint(1, MAX_TOKENS) if not is_choice else MAX_TOKENS,
        grammar=None if is_choice or rng.random() < 0.65 else Grammar(kind="regex", text="x"),
        choices=_CHOICES if is_choice else (),
        prefix_key="shared" if num_shared else "",
        speculation=SpeculationSettings(
            num_speculative_tokens=rng.choice((0, 1, 3, 4, None, None))
        ),
    )


def _expected(request: GenerationRequest) -> tuple[int, ...]:
    if request.choices:
        return expected_choice(request.prompt_ids, request.sampling, request.choices)
    return expected(
        request.prompt_ids,
        request.sampling,
        request.max_tokens,
        is_constrained=request.grammar is not None,
    )


@dataclass(slots=True)
class Reader:
    """One request, how it is read, and what became of it."""

    network: Network
    request: GenerationRequest
    router: Router
    begins_s: float
    cancelled_after_s: float | None = None
    closes_after: int | None = None  # events
    pause_s: float = 0.0  # that the reader takes for each event
    ids: list[int] = field(default_factory=list)
    end: str = ""
    lost_kind: str = ""  # of replicas that it says it has lost
    is_refused: bool = False  # as all replicas are full
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def drawn(cls, network: Network, request: GenerationRequest, router: Router) -> Reader:
        """Draw how a request is read: to its end, slowly, not to its end, cancelled."""
        rng = network.rng
        reader = cls(network, request, router, rng.choice((0.0, 0.02, 0.3)) * rng.random())
        how = rng.random()
        if how < 0.1:
            reader.cancelled_after_s = rng.uniform(0.0, 1.0)
        elif how < 0.2:
            reader.closes_after = rng.randint(0, 6)
        elif how < 0.3:
            reader.pause_s = rng.uniform(0.0, rng.choice((0.3, 1.0)))
        return reader

    @property
    def name(self) -> str:
        """The session's id."""
        return self.request.request_id

    def complain(self, what: object) -> None:
        """Note what is wrong with it."""
        self.complaints.append(f"{self.name}: {what}")

    async def read(self) -> None:
        """Ask, read, leave, and judge."""
        await asyncio.sleep(self.begins_s)
        limit_s = longest_s(self.request.max_tokens) + _MAX_EVENTS * self.pause_s
        task = asyncio.create_task(self._stream(), name=self.name)
        began_s = self.network.now()
        if self.cancelled_after_s is not None:
            await asyncio.wait([task], timeout=self.cancelled_after_s)
            task.cancel()
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            passed_s = self.network.now() - began_s
            self.complain(f"no end after {passed_s:.0f} s, its limits together are {limit_s:.0f} s")
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.network.note(f"{self.name}: {self.end} after {len(self.ids)} tokens")
        self._judge()
        if (num_targets := self.network.num_granted["target", self.name]) > LIMITS.max_losses:
            self.complain(f"had {num_targets} targets, which is more than it may lose")

    async def _stream(self) -> None:
        try:
            await self._events()
        except asyncio.CancelledError:
            self.end = self.end or "cancelled"
            raise
        except ServingError as error:
            if self.end:
                self.complain(f"{error} after its end")
            self.end = error.code
            self.lost_kind = next((kind for kind in _LOST if error.message.startswith(kind)), "")
            self._note_refusal(error.message)
            cause = error.__cause__
            is_fault = isinstance(cause, LinkLost) and cause.reason == "fault"
            if is_fault or not isinstance(error, Unavailable | Overloaded):
                self.complain(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever comes out of a request is a finding
            self.complain(f"{type(error).__name__}: {error}")
            self.end = "crashed"
        else:
            self.end = self.end or "closed"

    def _note_refusal(self, message: str) -> None:
        """Complain if all are full by the message and one had room for long, or the reverse."""
        if not (found := _BUSY.search(message)):
            return
        kind, waited_s, busy = found.groups()
        self.network.counts["no place"] += bool(busy)
        self.is_refused = bool(busy) and self.network.counts["full"] > 0
        alive = self.router.links.deployments[kind].alive
        lasted_s = max((one.lasted_s(is_full=not busy) for one in alive), default=0.0)
        if min(lasted_s, float(waited_s)) > _FOUND_S:
            self.complain(f"{message}; that is untrue of one for {lasted_s:.1f} s")

    async def _events(self) -> None:
        sink = self.router.quarantine.sink(self.request)
        num_events = 0
        try:
            async with aclosing(self.router.generator.generate(self.request, NoText())) as events:
                async for event in events:
                    num_events += 1
                    if self.end:
                        self.complain(f"{event} after its end")
                    if isinstance(event, Delta):
                        self.ids += event.token_ids
                    if isinstance(event, Finished):
                        self.end = event.finish_reason
                        drafted = event.speculation
                        self.network.counts["drafted"] += drafted.num_draft_tokens
                        self.network.counts["accepted"] += drafted.num_accepted_draft_tokens
                    await asyncio.sleep(self.pause_s)
                    if num_events == self.closes_after:
                        return
        except ServingError as error:
            sink.failed(0, error.code)
            raise

    def _judge(self) -> None:
        request, ids = self.request, tuple(self.ids)
        whole = _expected(request)
        self.network.counts[self.end] += 1
        self.network.counts["sessions"] += 1
        if ids != whole[: len(ids)]:
            self.complain(f"{ids} is not the beginning of {whole}")
        reason = "stop" if whole[-1] == EOS_ID else "length"
        if self.end in ("stop", "length") and (ids, self.end) != (whole, reason):
            self.complain(f"{ids} ({self.end}) is not {whole} ({reason})")
        if not self.end:
            self.complain("it has no end")
        is_lost = self.end == ReplicasLost.code
        num_losses = LIMITS.max_losses if is_lost else 1
        is_explained = self.network.explains(self.lost_kind, num_losses)
        if self.end in _FAILURES and not is_explained and (self.lost_kind or not self.is_refused):
            self.complain(f"{self.end}, for no reason")
        if is_lost:
            try:
                self.router.quarantine.sink(request)
                self.complain("asked again, it may lose further replicas at once")
            except ReplicasLost:
                pass
