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
from dataclasses import dataclass

from models.errors import ConstraintViolation, MaskUnavailable, Unavailable
from models.messages import Verdict
from models.token_log import TokenLog
from router.draft_length import DraftLengthPolicy, PassCosts, RoundPlan
from router.generation import Delta, FinishReason
from router.ports import Constrainer, Drafter, Verifier
from router.round_stats import RoundStats
from router.stops import StopChecker

_MAX_MASK_LOSSES = 4  # times in a row that masks may be lost before the request fails


@dataclass(slots=True, kw_only=True)
class SessionParts:
    """What one session's loop works with."""

    committed: TokenLog  # prompt and generated tokens
    generated: TokenLog  # generated tokens alone: the grammar's view
    stops: StopChecker
    policy: DraftLengthPolicy
    costs: PassCosts
    stats: RoundStats
    verifier: Verifier
    drafter: Drafter | None
    constrainer: Constrainer | None


async def run_session(parts: SessionParts) -> AsyncGenerator[Delta | FinishReason, None]:
    """Generate until the text ends; yields deltas, then the finish reason.

    Raises:
        ServingError: the session cannot go on; what was yielded before stands.
    """
    num_mask_losses = 0
    while True:
        plan = parts.policy.plan(_max_draft_tokens(parts))
        draft = await _draft(parts, plan)
        try:
            async with aclosing(_verify(parts, draft, plan)) as rounds:
                async for tokens in rounds:
                    num_mask_losses = 0
                    await _validate(parts, tokens)
                    taken = parts.stops.take(tokens)
                    _commit(parts, tokens[: taken.num_tokens])
                    emitted_at = time.perf_counter()
                    yield Delta(taken.text, tuple(tokens[: taken.num_tokens]))
                    parts.stats.add_emit(emitted_at)
                    if taken.finish_reason is not None:
                        yield taken.finish_reason
                        return
        except MaskUnavailable:
            num_mask_losses += 1
            if parts.constrainer is None or num_mask_losses > _MAX_MASK_LOSSES:
                raise
            asked_at = time.perf_counter()
            await parts.constrainer.reopen()
            parts.stats.add_grammar(asked_at)


def _max_draft_tokens(parts: SessionParts) -> int:
    """The round emits one token of the target's own, so a draft leaves room for it."""
    if parts.drafter is None or not parts.drafter.is_ready:
        return 0
    return max(0, parts.stops.remaining_tokens - 1)


async def _draft(parts: SessionParts, plan: RoundPlan) -> list[int]:
    """The draft of one round; empty when none is planned or to be had."""
    if plan.num_draft_tokens == 0 or parts.drafter is None:
        return []
    asked_at = time.perf_counter()
    try:
        proposal = await parts.drafter.propose(parts.committed, plan.num_draft_tokens)
    except Unavailable:
        parts.stats.add_draft(asked_at, None)
        return []
    link_ms = parts.stats.add_draft(asked_at, proposal.timing)
    parts.costs.observe_draft(proposal.step_ms, link_ms)
    return list(proposal.tokens)


async def _verify(
    parts: SessionParts, draft: list[int], plan: RoundPlan
) -> AsyncGenerator[list[int], None]:
    """The tokens each verdict commits: accepted + 1 for the draft, 1 for each plain step."""
    run_on = min(plan.run_on, parts.stops.remaining_tokens - 1 - len(draft))
    is_prefill = len(parts.generated) == 0
    asked_at = time.perf_counter()
    verdicts = parts.verifier.verify(parts.committed, draft, max(0, run_on))
    async with aclosing(verdicts):
        async for verdict in verdicts:
            parts.stats.add_verdict(asked_at, verdict.timing)
            if not is_prefill:
                num_own_rows = 1 + len(draft) if verdict.part == 0 else 1
                parts.costs.observe_pass(
                    verdict.timing.num_rows, num_own_rows, verdict.timing.pass_ms
                )
            yield _judge(parts, draft, plan, verdict)
            asked_at = time.perf_counter()


def _judge(parts: SessionParts, draft: list[int], plan: RoundPlan, verdict: Verdict) -> list[int]:
    """The tokens a verdict stands for, up to eos; learns from the draft's fate."""
    if verdict.part > 0 or not draft:
        return [verdict.token]
    parts.stats.add_acceptance(plan.num_draft_tokens, len(draft), verdict.num_accepted)
    # A drafted eos that the target draws too comes back as its token: it stood all the same.
    is_eos_right = draft[verdict.num_accepted : verdict.num_accepted + 1] == [verdict.token]
    parts.policy.observe(len(draft), verdict.num_accepted + is_eos_right)
    return parts.stops.until_eos([*draft[: verdict.num_accepted], verdict.token])


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
