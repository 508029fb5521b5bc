"""One session as a coroutine: plan, draft, verify, validate, commit, emit, until the text ends.

This is the algorithm; everything else stands behind `ports`. Plain decoding is the same loop
with k = 0, where the target goes on alone between messages. A round emits the accepted draft
tokens and exactly one token of the target's own; both caches roll back by being told the next
base length. Leviathan et al. 2211.17192, Chen et al. 2302.01318; verification by shared noise
(2408.07978) happens in the target engine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from models.protocol.errors import ConstraintViolation, MaskUnavailable, Unavailable
from models.protocol.messages import DraftProbs, DraftSource, Proposal, Verdict
from models.protocol.token_sequence import TokenSequence
from router.logprobs import LogprobsOutbox
from router.planning.costs import PassCosts
from router.planning.round_plan import RoundPlan
from router.planning.round_planner import RoundPlanner
from router.planning.shadow import ShadowDraft
from router.ports import Constrainer, Drafter, Verifier
from router.stats import RoundStats
from router.stops import StopChecker
from router.types import Delta, FinishReason

_MAX_MASK_LOSSES = 4  # times in a row that masks may be lost before the request fails


@dataclass(slots=True, kw_only=True)
class SessionParts:
    """What one session's loop works with."""

    committed: TokenSequence  # prompt and generated tokens
    generated: TokenSequence  # generated tokens alone: the grammar's view
    stops: StopChecker
    planner: RoundPlanner
    costs: PassCosts
    stats: RoundStats
    verifier: Verifier
    drafter: Drafter | None
    constrainer: Constrainer | None
    logprobs: LogprobsOutbox = field(default_factory=LogprobsOutbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What one round has the target do. `draft_probs` are those of exactly this draft."""

    draft: list[int]
    draft_probs: DraftProbs | None
    source: DraftSource
    plan: RoundPlan
    planned_at: float


async def run_session(parts: SessionParts) -> AsyncGenerator[Delta | FinishReason, None]:
    """Generate until the text ends; yields deltas, then the finish reason.

    Raises:
        ServingError: the session cannot go on; what was yielded before stands.
    """
    shadow = None
    if parts.drafter is not None:
        shadow = ShadowDraft(parts.drafter, parts.committed, parts.costs)
    try:
        async with aclosing(_rounds(parts, shadow)) as events:
            async for event in events:
                yield event
    finally:
        parts.planner.close()
        if shadow is not None:
            await shadow.cancel()


async def _rounds(
    parts: SessionParts, shadow: ShadowDraft | None
) -> AsyncGenerator[Delta | FinishReason, None]:
    num_mask_losses = 0
    while True:
        asked = await _prepare(parts, shadow)
        try:
            async with aclosing(_verify(parts, asked)) as verdicts:
                async for tokens, verdict in verdicts:
                    num_mask_losses = 0
                    await _validate(parts, tokens)
                    taken = parts.stops.take(tokens)
                    _commit(parts, tokens[: taken.num_tokens])
                    shown = parts.logprobs.shown(verdict, tokens, taken)
                    of_prompt = parts.logprobs.of_prompt(verdict)
                    emitted_at = time.perf_counter()
                    yield Delta(taken.text, tuple(tokens[: taken.num_tokens]), shown, of_prompt)
                    parts.stats.add_emit(emitted_at)
                    if taken.finish_reason is not None:
                        yield taken.finish_reason
                        return
                    if parts.planner.is_awaited:
                        break
        except MaskUnavailable as error:
            num_mask_losses += 1
            if parts.constrainer is None:
                raise
            if num_mask_losses > _MAX_MASK_LOSSES:
                raise MaskUnavailable(
                    f"masks lost {num_mask_losses} times in a row, at most {_MAX_MASK_LOSSES} are "
                    f"survived; at last: {error.message}"
                ) from error
            asked_at = time.perf_counter()
            await parts.constrainer.reopen()
            parts.stats.add_grammar(asked_at)


async def _prepare(parts: SessionParts, shadow: ShadowDraft | None) -> _Round:
    """Plan a round and have it drafted; without a draft the target goes on alone."""
    if shadow is not None and (outcome := shadow.outcome()) is not None:
        parts.planner.observe_shadow(*outcome)
    planned_at = time.perf_counter()
    drafter = parts.drafter
    source = None if drafter is None or drafter.is_over else drafter.source
    plan = parts.planner.plan(source, _max_draft_tokens(parts))
    proposal = None
    if shadow is not None and plan.num_draft_tokens > 0:
        await shadow.cancel()
        proposal = await _draft(parts, plan)
    elif shadow is not None and plan.num_shadow_tokens > 0:
        shadow.start(plan.num_shadow_tokens)
    if proposal is None or not proposal.tokens:
        if plan.num_draft_tokens > 0:
            plan = parts.planner.after_miss()
        return _Round(
            draft=[], draft_probs=None, source="draft_model", plan=plan, planned_at=planned_at
        )
    return _Round(
        draft=list(proposal.tokens),
        draft_probs=proposal.draft_probs,
        source=proposal.source,
        plan=plan,
        planned_at=planned_at,
    )


def _max_draft_tokens(parts: SessionParts) -> int:
    """The round emits one token of the target's own, so a draft leaves room for it."""
    if parts.drafter is None or not parts.drafter.is_ready:
        return 0
    return max(0, parts.stops.remaining_tokens - 1)


async def _draft(parts: SessionParts, plan: RoundPlan) -> Proposal | None:
    """The proposal of one round; None when there is no drafter or it is lost."""
    if parts.drafter is None:
        return None
    asked_at = time.perf_counter()
    try:
        proposal = await parts.drafter.propose(parts.committed, plan.num_draft_tokens)
    except Unavailable:
        parts.stats.add_draft(asked_at, None)
        return None
    is_remote = proposal.source == "draft_model"
    parts.stats.add_draft(asked_at, proposal.timing if is_remote else None)
    if is_remote:
        parts.costs.observe_draft(proposal, (time.perf_counter() - asked_at) * 1e3)
        parts.planner.observe_steps(proposal.timing)
    return proposal


async def _verify(
    parts: SessionParts, asked: _Round
) -> AsyncGenerator[tuple[list[int], Verdict], None]:
    """The tokens each verdict commits: accepted + 1 for the draft, 1 for each plain step."""
    run_on = min(asked.plan.run_on, parts.stops.remaining_tokens - 1 - len(asked.draft))
    is_prefill = len(parts.generated) == 0
    asked_at = time.perf_counter()
    verdicts = parts.verifier.verify(
        parts.committed, asked.draft, max(0, run_on), asked.draft_probs
    )
    async with aclosing(verdicts):
        async for verdict in verdicts:
            parts.stats.add_verdict(asked_at, verdict.timing)
            if is_prefill:
                _note_cached(parts, verdict)
            else:
                _observe_pass(parts, asked, verdict, asked_at)
            yield _judge(parts, asked, verdict), verdict
            asked_at = time.perf_counter()


def _observe_pass(parts: SessionParts, asked: _Round, verdict: Verdict, asked_at: float) -> None:
    """Learn what the pass cost, and from the first verdict what the round did."""
    parts.costs.observe_pass(verdict.timing.num_rows, verdict.timing.pass_ms)
    parts.planner.observe_pass(verdict.timing)
    if verdict.part > 0:
        return
    now = time.perf_counter()
    if asked.plan.is_typical or not asked.draft:
        parts.costs.observe_verify(verdict, (now - asked_at) * 1e3, len(asked.draft))
    if asked.draft:
        parts.planner.observe_round(asked.plan, (now - asked.planned_at) * 1e3)


def _note_cached(parts: SessionParts, verdict: Verdict) -> None:
    """The text's first verdict says how much of the prompt the target found in its cache."""
    if len(parts.generated) == 0:
        parts.stats.num_cached_tokens = verdict.num_cached_tokens


def _judge(parts: SessionParts, asked: _Round, verdict: Verdict) -> list[int]:
    """The tokens a verdict stands for, up to eos; learns from the draft's fate."""
    draft, num_accepted = asked.draft, verdict.num_accepted
    if verdict.part > 0 or not draft:
        return [verdict.token]
    parts.stats.add_acceptance(asked.source, len(draft), num_accepted)
    # A drafted eos that the target draws too comes back as its token: it stood all the same.
    is_eos_right = draft[num_accepted : num_accepted + 1] == [verdict.token]
    parts.planner.observe(asked.source, len(draft), num_accepted + is_eos_right)
    return parts.stops.until_eos([*draft[:num_accepted], verdict.token])


async def _validate(parts: SessionParts, tokens: Sequence[int]) -> None:
    """Let the grammar judge the tokens before anything of them is emitted."""
    if parts.constrainer is None:
        return
    asked_at = time.perf_counter()
    answer = await parts.constrainer.commit(parts.generated, tokens)
    parts.stats.add_grammar(asked_at)
    if answer.num_valid < len(tokens):
        position = len(parts.generated) + answer.num_valid
        raise ConstraintViolation(
            f"token {tokens[answer.num_valid]} at output position {position} breaks the grammar: "
            f"{answer.message}"
        )


def _commit(parts: SessionParts, tokens: Sequence[int]) -> None:
    parts.committed.extend(tokens)
    parts.generated.extend(tokens)
