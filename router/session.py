"""One request's token sequences and its sessions on target, drafters and constraint service.

`open_session` makes what the loop works with and frees it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from models.protocol.messages import MAX_DRAFT_TOKENS, Sampling
from models.protocol.token_sequence import TokenSequence
from router.comparing import SessionReplays
from router.drafters.chain import ChainTerms, NamedFree
from router.drafters.choice import choose_drafters, draft_models, draft_sampling, fixed_length
from router.drafters.draft_choice import DraftChoice
from router.drafters.drafting import Drafting
from router.drafters.forced import FORCED, FORCED_EDGE, ForcedText
from router.drafters.heads import heads_alone, own_length
from router.drafters.kind import DrafterContext, DrafterKind
from router.drafters.registry import drafters_of
from router.drafters.repeats.known import KnownTokens
from router.drafters.repeats.match_odds import MatchOdds
from router.drafters.repeats.prediction import PREDICTION, PredictionDrafter
from router.drafters.repeats.suffix import SUFFIX
from router.drafters.repeats.suffix_index import SuffixIndex
from router.drafters.repeats.text_memory import may_draft_from_answers
from router.drafters.rules import DraftRules, max_batch_size, max_branches, why_never
from router.drafters.side_by_side import SessionDrafters
from router.drafters.smaller import SmallerDraft
from router.guard import GrammarGuard, NoGrammar
from router.logprobs import LogprobsOutbox
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession
from router.planning.fixed import FixedPlanner
from router.ports import DrafterTraits, EnginePool, TaskClass, Verifier
from router.remote.closing import close_in_time
from router.remote.engine import EngineClient
from router.remote.target import RemoteVerifier
from router.round_log import RoundLog
from router.rounds import RoundWatch, SessionPlanner
from router.services import Services, new_client, new_constrainer, opening
from router.stats import RoundStats
from router.stops import StopChecker
from router.types import Detokenizer, GenerationRequest

_CREATIVE_TEMPERATURE = 1.1  # above it samples leave what either model thinks likely
_SMALLER_ODDS = 0.8  # that a draft model says what a smaller one says, before any was seen
_LEAD_IN = 6  # prompt tokens kept with an answer, so that its first tokens are found too
_NUM_COMPARED = 16  # last tokens of what a client has that are made again; one pass drafts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The state of one session's loop."""

    committed: TokenSequence  # prompt and generated tokens
    generated: TokenSequence  # generated tokens alone: the grammar's view
    stops: StopChecker
    drafting: Drafting
    verifier: Verifier
    guard: GrammarGuard | NoGrammar
    watch: RoundWatch
    logprobs: LogprobsOutbox = field(default_factory=LogprobsOutbox)
    details: RoundLog = field(default_factory=RoundLog)
    chooser: RemoteVerifier | None = None  # weighs whole texts
    replayed: SessionReplays | None = None  # asks draft models what they would have drafted
    resumed_ids: tuple[int, ...] = ()  # first tokens of the text, of a stream that broke


@asynccontextmanager
async def open_session(
    request: GenerationRequest, services: Services, detokenizer: Detokenizer
) -> AsyncGenerator[Session, None]:
    """Open a session for a request, and free it everywhere on the way out.

    The grammar is compiled first: a request with a bad one should touch no engine.

    Raises:
        InvalidRequest: the request asks for a drafter that this deployment has not.
        UnsupportedGrammar: it asks for a grammar that is refused, or there is nobody to ask.
        Unavailable: no constraint replica answers.
    """
    builder = _Builder(request, services)
    session = builder.session(detokenizer)
    try:
        await session.guard.open()
        with services.live.joined(lambda: builder.replica):
            session.drafting.start()
            yield session
    finally:
        builder.remember()
        session.watch.end_round()
        session.watch.planner.leave(len(session.generated))
        parts = (session.drafting, session.verifier, session.guard)
        await close_in_time(parts, services.closings)


class _Builder:
    """Makes the parts of one session; they know each other only as far as they are handed in.

    Raises:
        InvalidRequest, UnsupportedGrammar: the request asks for what this deployment has not.
    """

    def __init__(self, request: GenerationRequest, services: Services) -> None:
        never = why_never(request, services.speculation)
        if never:
            request = replace(request, speculation=replace(request.speculation, enabled=False))
        self._request = request
        self._services = services
        self._committed = TokenSequence(request.prompt_ids)
        self._generated = TokenSequence()
        self._eos_ids = request.end_ids
        self._kinds = choose_drafters(
            request.speculation,
            services.speculation,
            services.draft_pools,
            self._preferred,
            services.heads,
        )
        self._fixed = fixed_length(request.speculation, services.speculation)
        if request.choices:  # nothing is drafted: the text comes whole
            self._kinds, self._fixed = (), 0
        self._estimates = {kind.name: self._estimate(kind.traits) for kind in self._kinds}
        self._forced = self._forced_text()
        self._constrainer = new_constrainer(services, request, self._generated, self._max_forced())
        self._rules = DraftRules(
            never,
            max_batch_size(request, services.speculation),
            lambda: services.live.num_on(self.replica),
        )
        self._verifier = RemoteVerifier(
            self._target_client(),
            services.limits,
            own_length=self._own_length,
            inspects=request.speculation.details,
        )
        self._planner = self._new_planner()
        self._planner.max_branches = max_branches(request, services.speculation)

    @property
    def replica(self) -> str:
        """The target replica that the session is on now; "": none."""
        return self._verifier.replica

    def session(self, detokenizer: Detokenizer) -> Session:
        """Put the session together."""
        request, services, stats = self._request, self._services, RoundStats()
        watch = RoundWatch(stats, services.planner.costs, self._planner, lambda: self.replica)
        watch.explains = request.speculation.details
        guard: GrammarGuard | NoGrammar = NoGrammar()
        if self._constrainer is not None:
            guard = GrammarGuard(
                self._constrainer,
                self._generated,
                stats,
                None if self._forced is None else self._forced.follow,
            )
        return Session(
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
            drafting=self._drafting(watch),
            verifier=self._verifier,
            chooser=self._verifier,
            guard=guard,
            watch=watch,
            logprobs=LogprobsOutbox(
                len(request.prompt_ids),
                is_asked=request.sampling.num_logprobs >= 0,
                is_asked_for_prompt=request.sampling.num_prompt_logprobs >= 0,
            ),
            details=RoundLog(stats if request.speculation.details else None),
            replayed=self._replays(),
            resumed_ids=_resumed_ids(request),
        )

    def _preferred(self, models: Sequence[DrafterKind]) -> str:
        """Return the draft model to use if neither request nor config names one."""
        services = self._services
        planner = services.planner
        known = planner.costs, services.acceptance, lambda: planner.num_sessions, services.chosen
        return DraftChoice(*known).choose(
            [kind.traits for kind in models],
            self._task_class(),
            verification=self._request.sampling.verification,
            shares=services.speculation.draft_shares,
            key=self._request.request_id,
            max_length=services.speculation.max_num_speculative_tokens,
        )

    def _replays(self) -> SessionReplays:
        services = self._services
        return SessionReplays(
            request=self._request,
            committed=self._committed,
            models=draft_models(services.speculation, services.draft_pools),
            client=self._draft_client,
            limits=services.limits,
            acceptance=self._pool,
            comparison=services.comparison,
            max_length=services.speculation.max_num_speculative_tokens,
        )

    def remember(self) -> None:
        """Keep the answer for later requests of the same salt, if drafts are wanted at all."""
        allowed, num_prompt = self._services.speculation, len(self._request.prompt_ids)
        if self._kinds and self._generated and SUFFIX.is_switched_on(allowed):
            self._services.memory.add(
                self._request.cache_salt,
                self._committed.ids[max(0, num_prompt - _LEAD_IN) :],
                max_answers=allowed.suffix_decoding_max_cached_requests,
                max_tokens=allowed.suffix_decoding_max_cached_tokens,
            )

    def _own_length(self) -> int | None:
        """Tokens of each draft that the target makes itself, see `heads.own_length`."""
        if self._request.choices or self._rules.is_off:
            return None
        return own_length(self._request.speculation, self._services.speculation, self._fixed)

    def _max_forced(self) -> int:
        """Forced tokens that a draft of the session has room for."""
        if self._request.grammar is None or not self._services.speculation.forced_text:
            return 0
        return min(self._max_draft_tokens(), self._num_free_tokens())

    def _forced_text(self) -> ForcedText | None:
        if self._max_forced() == 0:
            return None
        settled, edge = self._estimate(FORCED), self._estimate(FORCED_EDGE)
        return ForcedText(len(self._committed), settled, edge)

    def _drafting(self, watch: RoundWatch) -> Drafting:
        return Drafting(
            self._drafters(),
            self._committed,
            watch,
            self._terms(),
            self._smaller_draft(),
            self._rules,
        )

    def _smaller_draft(self) -> SmallerDraft | None:
        """Return the draft model that drafts for the session's own."""
        services = self._services
        larger = self._kinds[0].name if self._kinds else ""
        if (smaller := services.speculation.drafted_by.get(larger)) is None:
            return None
        kind = drafters_of(services.draft_pools)[smaller]
        odds = services.acceptance.setdefault(
            (f"{smaller} for {larger}", self._task_class()), AcceptancePool(_SMALLER_ODDS)
        )
        make = partial(kind.make, self._context())
        return SmallerDraft(
            kind.traits, larger, make, AcceptanceEstimate(odds), services.planner.costs
        )

    def _context(self) -> DrafterContext:
        return DrafterContext(
            session_id=self._request.request_id,
            committed=self._committed,
            eos_ids=self._eos_ids,
            speculation=self._services.speculation,
            limits=self._services.limits,
            engine=self._draft_client,
            task_class=self._task_class(),
            num_branches=lambda: self._planner.num_branches,
            memory=self._services.memory,
            other_texts=self._recent_answers,
        )

    def _drafters(self) -> SessionDrafters:
        context = self._context()
        return SessionDrafters(
            [(kind.traits, partial(kind.make, context)) for kind in self._kinds],
            continues=self._fixed is None and self._num_free_tokens() > 0,
        )

    def _recent_answers(self) -> Sequence[SuffixIndex]:
        """Answers of other requests that the session may draft from."""
        if not may_draft_from_answers(self._request.sampling):
            return ()
        recent = self._services.memory.recent(self._request.cache_salt)
        return () if recent is None else (recent,)

    def _terms(self) -> ChainTerms:
        """Return the terms of the session's chains; a fixed k is of all their tokens together."""
        return ChainTerms(
            front=self._front(),
            max_tokens=self._max_draft_tokens(),
            max_free_tokens=self._num_free_tokens(),
            survival=lambda drafter, num: self._estimates[drafter.name].survival(num),
            known=self._known(),
        )

    def _known(self) -> KnownTokens | None:
        """Return the drafter of what the client has, unless the deployment drafts no such text."""
        known, allowed = self._request.known_ids, self._services.speculation
        is_on = allowed.enabled and allowed.max_num_free_tokens > 0
        if not known or not is_on or not may_draft_from_answers(self._request.sampling):
            return None
        return KnownTokens(self._generated, known)

    def _front(self) -> tuple[NamedFree, ...]:
        """Free drafters that begin the drafts: what is certain, then what the client foresees."""
        front = [] if self._forced is None else [NamedFree(FORCED, self._forced)]
        if (predicted := self._prediction()) is not None:
            front.append(NamedFree(PREDICTION, predicted))
        return tuple(front)

    def _prediction(self) -> PredictionDrafter | None:
        """Return the drafter from the request's prediction, maybe an answer of the same seed."""
        predicted = self._request.prediction
        if predicted is None or not may_draft_from_answers(self._request.sampling):
            return None
        odds = MatchOdds(self._services.memory.predicted_odds(self._task_class()))
        return PredictionDrafter(self._committed, predicted, odds, self._eos_ids)

    def _max_draft_tokens(self) -> int:
        return MAX_DRAFT_TOKENS if self._fixed is None else self._fixed

    def _num_free_tokens(self) -> int:
        allowed = self._services.speculation
        is_on = allowed.enabled and self._request.speculation.enabled
        return allowed.max_num_free_tokens if is_on else 0

    def _target_client(self) -> EngineClient:
        return self._client(self._services.target_pool, self._request.sampling)

    def _draft_client(self, pool: str, session_id: str = "") -> EngineClient:
        sampling = draft_sampling(self._request, self._services.speculation)
        return self._client(self._services.draft_pools[pool], sampling, session_id=session_id)

    def _client(self, pool: EnginePool, sampling: Sampling, session_id: str = "") -> EngineClient:
        template = opening(self._request, sampling)
        if session_id:
            template = replace(template, session_id=session_id)
        return new_client(self._services, self._request, pool, template, self._constrainer)

    def _new_planner(self) -> SessionPlanner:
        services, allowed = self._services, self._services.speculation
        if self._fixed is not None:
            is_own = heads_alone(self._request.speculation, allowed)
            return FixedPlanner(self._fixed, allowed.run_on_tokens, is_own=is_own)
        return PlannedSession(
            services.planner,
            self._estimates,
            lambda: self.replica,
            max_length=allowed.max_num_speculative_tokens,
            run_on=allowed.run_on_tokens,
            task=self._task_class(),
        )

    def _estimate(self, traits: DrafterTraits) -> AcceptanceEstimate:
        return AcceptanceEstimate(self._pool(traits))

    def _pool(self, traits: DrafterTraits) -> AcceptancePool:
        task_class = self._task_class()
        return self._services.acceptance.setdefault(
            (traits.name, task_class), AcceptancePool(traits.prior_acceptance[task_class])
        )

    def _task_class(self) -> TaskClass:
        if self._request.grammar is not None and not self._request.is_mostly_free:
            return "structured"
        is_creative = self._request.sampling.temperature > _CREATIVE_TEMPERATURE
        return "creative" if is_creative else "free"


def _resumed_ids(request: GenerationRequest) -> tuple[int, ...]:
    """Return the tokens that are taken from the client as they are.

    The last few are made again: they show that the text is the same. All are taken where a seed has
    many texts. Logprobs and details are of passes, so their text is made again whole.
    """
    sampling, known = request.sampling, request.known_ids
    asks_passes = max(sampling.num_logprobs, sampling.num_prompt_logprobs) >= 0
    if asks_passes or request.speculation.details:
        return ()
    num_compared = _NUM_COMPARED if may_draft_from_answers(sampling) else 0
    return known[: max(0, len(known) - num_compared)]
