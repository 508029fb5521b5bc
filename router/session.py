"""One request's token logs and its sessions on target, draft and constraint service.

Builds what the loop works with and frees it again. What sessions share is in `Services`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgspec

from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import DraftSource, Sampling
from models.protocol.token_sequence import TokenSequence
from router.drafters.choice import FillInDrafter, choose_source, fixed_length
from router.drafters.ngram import NgramDrafter
from router.limits import SessionLimits, SpeculationLimits
from router.logprobs import LogprobsOutbox
from router.loop import SessionParts
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.costs import PassCosts
from router.planning.groups import RouterPlanner, Seat
from router.planning.round_planner import (
    DraftLengthPolicy,
    FixedLength,
    PlannedLength,
    RoundPlanner,
)
from router.ports import ConstraintPool, Drafter, EnginePool
from router.remote.draft import RemoteDrafter
from router.remote.engine import EngineClient, OpenTemplate
from router.remote.grammar import RemoteConstrainer
from router.remote.target import RemoteVerifier
from router.stats import RoundStats
from router.stops import StopChecker
from router.types import Detokenizer, GenerationRequest

_CREATIVE_TEMPERATURE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all sessions of a router share: pools, limits, and what was learnt of cost and fate."""

    target_pool: EnginePool
    draft_pool: EnginePool | None
    constraint_pool: ConstraintPool | None
    speculation: SpeculationLimits = field(default_factory=SpeculationLimits)
    limits: SessionLimits = field(default_factory=SessionLimits)
    planner: RouterPlanner = field(default_factory=lambda: RouterPlanner(PassCosts()))
    acceptance: dict[tuple[DraftSource, str], AcceptancePool] = field(default_factory=dict)


class Session:
    """One request on its way through the services.

    Raises:
        InvalidRequest: the request asks for a drafter or a grammar that this deployment has not.
    """

    def __init__(self, request: GenerationRequest, services: Services) -> None:
        self._request = request
        self._services = services
        self._stats = RoundStats()
        self._committed = TokenSequence(request.prompt_ids)
        self._generated = TokenSequence()
        own_ids = () if request.ignore_eos else request.eos_ids
        self._eos_ids = tuple(dict.fromkeys((*own_ids, *request.stop_token_ids)))
        self._grammar = self._grammar_session()
        max_len = len(request.prompt_ids) + request.max_tokens
        session = self._engine_session(services.target_pool, request.sampling, max_len)
        self._target = RemoteVerifier(session, services.limits)
        self._draft: RemoteDrafter | None = None
        self._drafter = self._choose_drafter()

    async def start(self) -> None:
        """Compile the grammar first: a request with a bad one should touch no engine.

        Raises:
            UnsupportedGrammar: the grammar is refused.
            Unavailable: no constraint replica answers.
        """
        if self._grammar is not None:
            asked_at = time.perf_counter()
            await self._grammar.open()
            self._stats.add_grammar(asked_at)
        if self._draft is not None:
            self._draft.start()

    def parts(self, detokenizer: Detokenizer) -> SessionParts:
        """What the loop works with."""
        request = self._request
        return SessionParts(
            committed=self._committed,
            generated=self._generated,
            stops=StopChecker(
                detokenizer,
                eos_ids=self._eos_ids,
                stop=request.stop,
                max_tokens=request.max_tokens,
                min_tokens=request.sampling.min_tokens,
                includes_stop=request.includes_stop,
            ),
            planner=self._planner(),
            costs=self._services.planner.costs,
            stats=self._stats,
            verifier=self._target,
            drafter=self._drafter,
            constrainer=self._grammar,
            logprobs=LogprobsOutbox(
                len(request.prompt_ids),
                is_asked=request.sampling.num_logprobs >= 0,
                is_asked_for_prompt=request.sampling.num_prompt_logprobs >= 0,
            ),
        )

    async def close(self) -> None:
        """Free the session everywhere. Idempotent; never raises."""
        closings = [
            part.close()
            for part in (self._drafter, self._target, self._grammar)
            if part is not None
        ]
        await asyncio.gather(*closings, return_exceptions=True)

    def _engine_session(
        self, pool: EnginePool, sampling: Sampling, max_len: int = 0
    ) -> EngineClient:
        opening = OpenTemplate(
            session_id=self._request.request_id,
            sampling=sampling,
            eos_ids=self._eos_ids,
            prompt_len=len(self._request.prompt_ids),
            cache_salt=self._request.cache_salt,
            max_len=max_len,
        )
        return EngineClient(pool, opening, self._services.limits, self._grammar)

    def _choose_drafter(self) -> Drafter | None:
        services = self._services
        source = choose_source(
            self._request.speculation,
            services.speculation,
            has_draft_model=services.draft_pool is not None,
        )
        if source == "ngram":
            return self._ngram_drafter()
        if source is None or services.draft_pool is None:
            return None
        sampling = self._request.sampling  # who drafts is asked for no logprobs
        sampling = msgspec.structs.replace(sampling, num_logprobs=-1, num_prompt_logprobs=-1)
        session = self._engine_session(services.draft_pool, sampling)
        self._draft = RemoteDrafter(session, services.limits, self._committed)
        if services.speculation.prompt_lookup_max == 0:
            return self._draft
        return FillInDrafter(self._draft, self._ngram_drafter)

    def _ngram_drafter(self) -> NgramDrafter:
        allowed = self._services.speculation
        return NgramDrafter(
            self._request.request_id,
            min_len=allowed.prompt_lookup_min,
            max_len=allowed.prompt_lookup_max,
            eos_ids=self._eos_ids,
        )

    def _grammar_session(self) -> RemoteConstrainer | None:
        request, services = self._request, self._services
        if request.grammar is None:
            return None
        if services.constraint_pool is None:
            raise UnsupportedGrammar("this deployment has no constraint service")
        return RemoteConstrainer(
            services.constraint_pool,
            request.request_id,
            request.grammar,
            self._generated,
            services.limits,
        )

    def _planner(self) -> RoundPlanner:
        allowed = self._services.speculation
        fixed = fixed_length(self._request.speculation, allowed)
        sources: tuple[DraftSource, ...] = ("draft_model", "ngram")
        lengths: dict[DraftSource, DraftLengthPolicy]
        if fixed is not None:
            lengths = {source: FixedLength(fixed) for source in sources}
            return RoundPlanner(lengths, allowed.run_on_tokens)
        seat = self._services.planner.seat(lambda: self._target.replica)
        lengths = {source: self._planned_length(seat, source) for source in sources}
        return RoundPlanner(lengths, allowed.run_on_tokens, seat)

    def _planned_length(self, seat: Seat, source: DraftSource) -> PlannedLength:
        services, task_class = self._services, self._task_class()
        pool = services.acceptance.setdefault(
            (source, task_class), AcceptancePool(task_class, source)
        )
        max_length = services.speculation.max_num_speculative_tokens
        return PlannedLength(seat, source, AcceptanceEstimate(pool), max_length)

    def _task_class(self) -> str:
        if self._request.grammar is not None:
            return "structured"
        is_creative = self._request.sampling.temperature > _CREATIVE_TEMPERATURE
        return "creative" if is_creative else "free"
