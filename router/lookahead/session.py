"""The state of one session of look-aheads; `open_lookahead` makes it and frees it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from models.protocol.errors import InvalidRequest, MaskUnavailable, Unavailable
from models.protocol.forced import Forced
from models.protocol.messages import MAX_DRAFT_TOKENS, Sampling
from models.protocol.token_sequence import TokenSequence
from router.drafters.choice import draft_models
from router.guard import GrammarGuard, NoGrammar
from router.lookahead.advice import advice_of
from router.lookahead.branch import Branch, PlainStep
from router.lookahead.drafter import PatientDrafter
from router.lookahead.judge import Judge
from router.ports import EnginePool
from router.remote.closing import close_in_time
from router.remote.draft import RemoteDrafter
from router.remote.engine import EngineClient
from router.remote.grammar import RemoteConstrainer
from router.remote.rewards import RemoteScorer
from router.remote.target import RemoteVerifier
from router.services import Services, new_client, new_constrainer, opening
from router.stats import RoundStats
from router.stops import StopChecker
from router.types import Detokenizer, GenerationRequest, LookaheadSettings, LookaheadStats

_MASK_WAIT_MS = 2_000.0  # that masks of a draft may be late, as long as a target waits for its own


@dataclass(slots=True, kw_only=True)
class LookaheadSession:
    """The state that the loop works on.

    `ahead` are the likeliest next tokens with their log-probabilities, where the newest roll-out
    has told them. `states` counts those visited.
    """

    settings: LookaheadSettings
    committed: TokenSequence  # prompt and generated tokens
    generated: TokenSequence
    stops: StopChecker
    target: Branch
    rollouts: Sequence[Branch]  # one for each candidate
    drafter: PatientDrafter | None
    judge: Judge
    guard: GrammarGuard | NoGrammar
    waits: RoundStats  # for the grammar's verdicts
    states: Counter[str] = field(default_factory=Counter)
    num_rollouts: int = 0
    ahead: Sequence[tuple[int, float]] = ()
    forced: Sequence[int] = ()  # tokens that the grammar forces next, if that is certain
    is_budget_spent: bool = False

    @property
    def num_target_passes(self) -> int:
        """Verifications and single steps so far, of the text and of all roll-outs."""
        return sum(branch.num_passes for branch in (self.target, *self.rollouts))

    def note_forced(self, tokens: Sequence[int], forced: Forced) -> None:
        """Note the tokens that the grammar forces.

        Tokens at their edge may merge with free text.
        """
        self.forced = forced.tokens[: forced.num_settled]

    async def roll_out(self, candidates: Sequence[int]) -> list[list[PlainStep]]:
        """Have the target go on after each of the candidates, side by side in its passes."""
        num_tokens = min(self.settings.length, self.stops.remaining_tokens - 1)
        self.num_rollouts += len(candidates)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._roll_out(branch, candidate, num_tokens))
                    for branch, candidate in zip(self.rollouts, candidates, strict=False)
                ]
        except ExceptionGroup as errors:
            # Lost masks are got over; what is not got over comes first.
            raise min(errors.exceptions, key=_is_mask_loss) from None
        return [task.result() for task in running]

    async def _roll_out(self, branch: Branch, candidate: int, num_tokens: int) -> list[PlainStep]:
        if self.stops.until_eos([candidate, -1]) == [candidate]:
            return []  # nothing follows the end of a text
        return await branch.run(self.committed.followed_by([candidate]), num_tokens)

    async def stats(self) -> LookaheadStats:
        """Return the costs and results, once the text has ended."""
        score = await self.judge.final_score()
        stats = LookaheadStats(
            method=self.settings.method,
            num_target_passes=self.num_target_passes,
            num_verifications=self.target.num_passes,
            num_draft_steps=0 if self.drafter is None else self.drafter.num_steps,
            num_rollouts=self.num_rollouts,
            num_reward_calls=self.judge.num_calls,
            states=dict(self.states),
            score=score.score,
            is_met=score.is_met,
            is_budget_spent=self.is_budget_spent,
        )
        return replace(stats, advice=advice_of(self.settings, stats))


@asynccontextmanager
async def open_lookahead(
    request: GenerationRequest, services: Services, detokenizer: Detokenizer
) -> AsyncGenerator[LookaheadSession, None]:
    """Open a session for a request with `lookahead`, and free it everywhere on the way out.

    Grammar and reward are asked first: a request with a bad one should touch no engine.

    Raises:
        InvalidRequest: the reward is refused, or there is no draft model to draft with.
        UnsupportedGrammar: the grammar is refused.
        Overloaded: too many roll-outs run already.
        Unavailable: nobody answers for grammars or rewards.
    """
    session = _session(request, services, detokenizer)
    drafters = () if session.drafter is None else (session.drafter,)
    num_places, limits = len(session.rollouts), services.limits
    try:
        await session.guard.open()
        await session.judge.check()
        async with services.rollouts.held(num_places, limits.queue_wait_s):
            if session.drafter is not None:
                session.drafter.start()
            yield session
    finally:
        parts = (session.target, *session.rollouts, *drafters, session.judge, session.guard)
        await close_in_time(parts, services.closings)


def _session(
    request: GenerationRequest, services: Services, detokenizer: Detokenizer
) -> LookaheadSession:
    settings = request.lookahead
    assert settings is not None, "the request asks for no look-aheads"
    if services.constraint_pool is None:
        raise Unavailable("lookahead: this deployment has no constraint service, which has rewards")
    committed, generated = TokenSequence(request.prompt_ids), TokenSequence()
    max_forced = MAX_DRAFT_TOKENS if services.speculation.forced_text else 0
    # Roll-outs have no other matcher: their masks are walked on copies of it.
    masks, waits = new_constrainer(services, request, generated, max_forced), RoundStats()

    take_rows = partial(
        services.rollouts.rows, planner=services.planner, timeout_s=services.limits.queue_timeout_s
    )

    def branch(name: str, sampling: Sampling, *, tells: bool = True) -> Branch:
        if tells:  # candidates are the likeliest tokens, told with each of the target's own
            sampling = msgspec.structs.replace(
                sampling, num_logprobs=settings.candidates, masks_logprobs=True
            )
        client = _client(request, services, services.target_pool, sampling, masks, name)
        verifier = RemoteVerifier(client, services.limits)
        return Branch(client, verifier, request.end_ids, take_rows)

    # A step of CDLH goes on where the winner's roll-out told what may follow what is taken of it.
    tells = settings.method == "cdlh" and settings.commit != "rollout"
    session = LookaheadSession(
        settings=settings,
        committed=committed,
        generated=generated,
        stops=StopChecker(
            detokenizer,
            eos_ids=request.end_ids,
            stop=request.stop,
            max_tokens=request.max_tokens,
            includes_stop=request.includes_stop,
        ),
        target=branch("", request.sampling),
        rollouts=[
            branch(f"-rollout-{index}", _of_rollouts(request.sampling, settings), tells=tells)
            for index in range(settings.num_rollouts)
        ],
        drafter=(
            _drafter(request, services, committed, masks) if settings.method == "cdsl" else None
        ),
        judge=Judge(
            RemoteScorer(
                services.constraint_pool,
                request.request_id,
                settings.reward,
                services.limits,
                services.losses.constraint,
            ),
            request,
            settings,
            generated,
        ),
        guard=NoGrammar(),
        waits=waits,
    )
    if masks is not None:
        session.guard = GrammarGuard(masks, generated, waits, session.note_forced)
    return session


def _is_mask_loss(error: Exception) -> bool:
    return isinstance(error, MaskUnavailable)


def _of_rollouts(sampling: Sampling, settings: LookaheadSettings) -> Sampling:
    if settings.rollout == "greedy":
        return msgspec.structs.replace(sampling, temperature=0.0)
    seed = sampling.seed if settings.seed is None else settings.seed
    return msgspec.structs.replace(sampling, seed=seed)


def _drafter(
    request: GenerationRequest,
    services: Services,
    committed: TokenSequence,
    masks: RemoteConstrainer | None,
) -> PatientDrafter:
    """Return the draft model that the request names, or the first.

    Raises:
        InvalidRequest: it is not there.
    """
    models = draft_models(services.speculation, services.draft_pools)
    name = request.speculation.drafter
    kind = next((model for model in models if name in (None, model.name)), None)
    if kind is None:
        there = ", ".join(model.name for model in models) or "there is none"
        raise InvalidRequest(
            f"lookahead.method: cdsl needs a draft model ({there}), got drafter {name!r}",
            param="lookahead.method",
        )
    limits = services.limits
    # A draft that its deadline or a late mask cuts would make the text depend on the time.
    patient = limits.model_copy(update={"draft_ms": 1e3 * limits.token_gap_s})
    pool = services.draft_pools[kind.uses_pool]
    client = _client(request, services, pool, request.sampling, masks)
    drafter = RemoteDrafter(client, patient, committed, _MASK_WAIT_MS)
    return PatientDrafter(drafter, limits.queue_wait_s)


def _client(
    request: GenerationRequest,
    services: Services,
    pool: EnginePool,
    sampling: Sampling,
    masks: RemoteConstrainer | None,
    name: str = "",
) -> EngineClient:
    template = replace(
        opening(request, sampling),
        session_id=f"{request.request_id}{name}",
        is_tentative=bool(name),
        matcher=request.request_id,
    )
    return new_client(services, request, pool, template, masks)
