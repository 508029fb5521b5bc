"""One request's token logs and its sessions on target, draft and constraint service.

Builds what the loop works with and frees it again. What sessions share is in `Services`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from models.errors import UnsupportedGrammar
from models.messages import DraftSource
from models.token_log import TokenLog
from router.acceptance import AcceptanceEstimate, AcceptancePool
from router.draft_length import AdaptiveLength, DraftLengthPolicy, FixedLength, PassCosts
from router.draft_session import DraftSession
from router.engine_session import EngineLimits, EngineSession, Opening
from router.generation import Detokenizer, GenerationRequest
from router.grammar_session import GrammarSession
from router.loop import SessionParts
from router.ports import ConstraintPool, EnginePool
from router.round_stats import RoundStats
from router.stops import StopChecker
from router.target_session import TargetSession

_CREATIVE_TEMPERATURE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLimits:
    """What the operator allows. `num_speculative_tokens` None: k is chosen live."""

    enabled: bool = True
    num_speculative_tokens: int | None = None
    max_speculative_tokens: int = 8
    run_on_tokens: int = 32  # steps the target goes on alone where no draft is wanted at all
    method: DraftSource | None = (
        None  # None: the draft model where there is one, else prompt lookup
    )
    prompt_lookup_min: int = 1  # shortest n-gram that prompt lookup matches
    prompt_lookup_max: int = 4  # longest; 0: no prompt lookup at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all sessions of a router share: pools, limits, and what was learnt of cost and fate."""

    target_pool: EnginePool
    draft_pool: EnginePool | None
    constraint_pool: ConstraintPool | None
    speculation: SpeculationLimits = field(default_factory=SpeculationLimits)
    limits: EngineLimits = field(default_factory=EngineLimits)
    costs: PassCosts = field(default_factory=PassCosts)
    acceptance: dict[str, AcceptancePool] = field(default_factory=dict)  # by task class


class Session:
    """One request on its way through the services."""

    def __init__(self, request: GenerationRequest, services: Services) -> None:
        self._request = request
        self._services = services
        self._stats = RoundStats()
        self._committed = TokenLog(request.prompt_ids)
        self._generated = TokenLog()
        self._eos_ids = () if request.ignore_eos else request.eos_ids
        self._grammar = self._grammar_session()
        self._target = TargetSession(self._engine_session(services.target_pool), services.limits)
        self._draft = self._draft_session()

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
            ),
            policy=self._policy(),
            costs=self._services.costs,
            stats=self._stats,
            verifier=self._target,
            drafter=self._draft,
            constrainer=self._grammar,
        )

    async def close(self) -> None:
        """Free the session everywhere. Idempotent; never raises."""
        closings = [
            part.close() for part in (self._draft, self._target, self._grammar) if part is not None
        ]
        await asyncio.gather(*closings, return_exceptions=True)

    def _engine_session(self, pool: EnginePool) -> EngineSession:
        opening = Opening(
            session_id=self._request.request_id,
            sampling=self._request.sampling,
            eos_ids=self._eos_ids,
            prompt_len=len(self._request.prompt_ids),
        )
        return EngineSession(pool, opening, self._services.limits, self._grammar)

    def _draft_session(self) -> DraftSession | None:
        pool, wanted = self._services.draft_pool, self._request.speculation
        is_wanted = wanted.enabled and wanted.num_speculative_tokens != 0
        if pool is None or not is_wanted or not self._services.speculation.enabled:
            return None
        return DraftSession(self._engine_session(pool), self._services.limits, self._committed)

    def _grammar_session(self) -> GrammarSession | None:
        request, services = self._request, self._services
        if request.grammar is None:
            return None
        if services.constraint_pool is None:
            raise UnsupportedGrammar("this deployment has no constraint service")
        return GrammarSession(
            services.constraint_pool,
            request.request_id,
            request.grammar,
            self._generated,
            services.limits,
        )

    def _policy(self) -> DraftLengthPolicy:
        allowed = self._services.speculation
        if self._draft is None:
            return FixedLength(0, allowed.run_on_tokens)
        fixed = self._request.speculation.num_speculative_tokens
        if fixed is None:
            fixed = allowed.num_speculative_tokens
        if fixed is not None:
            return FixedLength(min(fixed, allowed.max_speculative_tokens), allowed.run_on_tokens)
        task_class = self._task_class()
        pool = self._services.acceptance.setdefault(task_class, AcceptancePool(task_class))
        return AdaptiveLength(
            AcceptanceEstimate(pool), self._services.costs, allowed.max_speculative_tokens
        )

    def _task_class(self) -> str:
        if self._request.grammar is not None:
            return "structured"
        is_creative = self._request.sampling.temperature > _CREATIVE_TEMPERATURE
        return "creative" if is_creative else "free"
