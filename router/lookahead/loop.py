"""Look-ahead decoding as a coroutine: text that is steered by a reward, and so another text.

Constrained decoding with lookahead heuristics, CDLH (Lu et al. 2112.08726), rolls every likely next
token out with the target and takes the one whose future earns most. Constrained decoding with
speculative lookaheads, CDSL (Nakshatri et al. 2412.10418), has the draft model write the future.
The target verifies it in one pass, the reward judges the rest, and both scores decide. A round of
CDSL is in one of these states. Here a is accepted of the draft, and r is its reward:

    accepted         a >= a_t and r >= r_t    what stands is the text, and the target's next token
    low_acceptance   a <  a_t                 the target generates: it foresees another text
    low_reward       a >= a_t and r <  r_t    the target generates: its own text earns too little
    no_draft         the draft model is away  the target generates

That is the paper's rule (`acceptance: paper`). Ours (`gain`) also keeps drafts below r_t that earn
more than the text without them. It never keeps one that loses the constraint for good
(`acceptance.py`).

The target generates by a step of CDLH, or plainly. None of this is exact. The distribution is not
the target's, and no other mode of the router goes through here. A grammar masks all: candidates,
roll-outs, drafts and verdicts. Forced text is taken as it is (`forced`). A step whose masks are
lost is made again, from the same text and so with the same outcome.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from models.protocol.messages import Verdict
from router.lookahead.acceptance import kept_by_gain, kept_by_paper, share_accepted, stands_enough
from router.lookahead.session import LookaheadSession
from router.loop import take
from router.types import Delta

_PLAIN_STEPS = 16  # at a time, once the budget is spent


async def run_lookahead(session: LookaheadSession) -> AsyncGenerator[Delta, None]:
    """Generate until the text ends; the last delta has the finish reason.

    Raises:
        ServingError: the session cannot go on; what was yielded before stays valid.
    """
    while True:
        tokens: list[int] = []
        async with session.guard.surviving_mask_loss():
            state, tokens = await _next_tokens(session)
        if not tokens:  # the masks were lost, and are to be had elsewhere now
            continue
        session.states[state] += len(tokens) if state == "plain" else 1
        tokens, stops = session.stops.until_eos(tokens), session.stops
        taken, new = await take(tokens, stops, session.guard, session.committed, session.generated)
        yield Delta(taken.text, new, finish_reason=taken.finish_reason)
        if taken.finish_reason is not None:
            return


async def _next_tokens(session: LookaheadSession) -> tuple[str, list[int]]:
    """Return the state that is visited, and the tokens that it gives."""
    budget = session.settings.budget
    if 0 < budget <= session.num_target_passes:
        session.is_budget_spent = True
        return "plain", await _run_plainly(session)
    if session.forced:  # bytes that are certain, and tokens as models cut them: nothing to weigh
        session.ahead = ()
        return "forced", list(session.forced)
    if session.settings.method == "cdsl":
        return await _speculate(session)
    if not session.ahead:
        session.ahead = _likeliest(await session.target.verify(session.committed, ()))
    return "lookahead", await _look_ahead(session, session.ahead)


async def _speculate(session: LookaheadSession) -> tuple[str, list[int]]:
    """Do a round of CDSL: draft, verify, judge, decide."""
    settings, num_left = session.settings, session.stops.remaining_tokens
    assert session.drafter is not None, "nobody drafts"
    proposal = await session.drafter.draft(session.committed, min(settings.length, num_left))
    draft = [] if proposal is None else proposal.tokens
    verdict = await session.target.verify(
        session.committed, draft, proposal.draft_probs if proposal else None
    )
    stands = session.stops.until_eos([*draft[: verdict.num_accepted], verdict.token])[:num_left]
    state, kept = await _decide(session, draft, verdict, stands)
    if state == "accepted":
        return state, kept
    if settings.generation == "plain":
        return state, stands[:1]  # the target's own next token, whatever was drafted
    return state, await _look_ahead(session, _likeliest(verdict))


async def _decide(
    session: LookaheadSession, draft: Sequence[int], verdict: Verdict, stands: list[int]
) -> tuple[str, list[int]]:
    """Return the state of a round, and the kept part of the draft."""
    if not draft:
        return "no_draft", []
    if not stands_enough(session.settings, share_accepted(draft, verdict)):
        return "low_acceptance", []
    kept = await judged(session, stands)
    return ("accepted", kept) if kept else ("low_reward", [])


async def judged(session: LookaheadSession, stands: list[int]) -> list[int]:
    """Return what the rule keeps of what stands: all of it, as much as gains, or nothing."""
    settings = session.settings
    if settings.acceptance == "paper":
        [score] = await session.judge.scores([stands])
        keeps = kept_by_paper(settings, score)
    else:
        before, score = await session.judge.scores([(), stands])
        keeps = kept_by_gain(settings, before, score)
    if keeps == "nothing":
        return []
    is_cut = keeps == "gain" and settings.commit == "gain"
    return await _gain(session, stands, score.value) if is_cut else stands


async def _look_ahead(
    session: LookaheadSession, candidates: Sequence[tuple[int, float]]
) -> list[int]:
    """Do a step of CDLH: roll the candidates out, score their futures, take the best.

    Args:
        session: whose text goes on.
        candidates: next tokens with their log-probabilities, the likeliest first.
    """
    settings = session.settings
    if len(candidates) == 1 < settings.candidates:  # the grammar allows no other
        session.ahead = ()
        return [candidates[0][0]]
    rollouts = await session.roll_out([token for token, _ in candidates])
    futures = [
        [token, *(step.token for step in steps)]
        for (token, _), steps in zip(candidates, rollouts, strict=True)
    ]
    scores = await session.judge.scores(futures)
    worth = [
        logprob + settings.reward_weight * score.value
        for (_, logprob), score in zip(candidates, scores, strict=True)
    ]
    best = worth.index(max(worth))  # the likeliest of equals
    session.ahead = ()
    if settings.commit == "rollout":
        return futures[best]
    if settings.commit == "gain":
        taken = await _gain(session, futures[best], scores[best].value)
    else:
        taken = futures[best][:1]
    told = rollouts[best][len(taken) - 1 : len(taken)]  # its step after what is taken
    if told and told[0].logprobs is not None:
        session.ahead = told[0].logprobs.top
    return taken


async def _gain(session: LookaheadSession, future: Sequence[int], value: float) -> list[int]:
    """Return the shortest beginning of a future with its whole value; one token if it has none.

    The rest has the same value from there on, and later tokens are predicted again.
    """
    beginnings = [future[:length] for length in range(len(future))]
    without, *scores = await session.judge.scores(beginnings)
    if value <= without.value:
        return list(future[:1])
    num_tokens = next(
        (length for length, score in enumerate(scores, 1) if score.value >= value), len(future)
    )
    return list(future[:num_tokens])


async def _run_plainly(session: LookaheadSession) -> list[int]:
    num_steps = min(_PLAIN_STEPS, session.stops.remaining_tokens)
    steps = await session.target.run(session.committed, num_steps)
    return [step.token for step in steps]


def _likeliest(verdict: Verdict) -> Sequence[tuple[int, float]]:
    """Return the likeliest allowed next tokens, with their log-probabilities."""
    return verdict.logprobs[0].top
