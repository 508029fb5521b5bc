"""One session as a coroutine: plan, draft, verify, validate, commit, emit, until the text ends.

This is the algorithm; everything else is inside the parts of a `Session`. Plain decoding is the
same loop with k = 0, where the target goes on alone between messages. Verdicts that came while
other sessions had their turn go out together. So a router that is behind has less to do. A round
emits the accepted draft tokens and exactly one token of the target's own. It is the recovered token
after the first rejection, or the bonus token after a whole draft. Both caches roll back when the
next message names a shorter prefix. Leviathan et al. 2211.17192, Chen et al. 2302.01318;
verification by shared noise (2408.07978) happens in the target engine.

Take k = 4, a draft [a, b, c, d] and a verdict (2 accepted, token x). The round commits a, b, x:

    committed  ... | a b x |          next round drafts after x
    draft          | a b c d          c was rejected, d never looked at
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from models.protocol.errors import ConstraintViolation, InvalidRequest
from models.protocol.messages import Verdict
from models.protocol.token_sequence import TokenSequence
from router.guard import GrammarGuard, NoGrammar
from router.rounds import Round
from router.session import Session
from router.stops import StopChecker, StopResult
from router.types import Delta

_RESUMED_AT_ONCE = 512  # tokens; others have their turn in between


async def run_session(session: Session) -> AsyncGenerator[Delta, None]:
    """Generate until the text ends; the last delta has the finish reason.

    Raises:
        ServingError: the session cannot go on; what was yielded before stays valid.
    """
    stops, guard, watch = session.stops, session.guard, session.watch
    for start in range(0, len(session.resumed_ids), _RESUMED_AT_ONCE):
        delta = await resume(session, session.resumed_ids[start : start + _RESUMED_AT_ONCE])
        yield delta
        if delta.finish_reason is not None:
            return
        await asyncio.sleep(0)
    goes_together = not session.details.is_on  # else each verdict is told
    while True:
        # Plan and draft: up to k tokens, by one of the session's drafters.
        asked = await session.drafting.next_round(stops.remaining_tokens)
        run_on = min(asked.plan.run_on, stops.remaining_tokens - 1 - len(asked.draft))

        # Verify: one target pass over k + 1 positions, then `run_on` plain steps.
        watch.note_asked()
        verdicts = session.verifier.verify(
            session.committed, asked.draft, max(0, run_on), asked.draft_probs
        )
        arrived: list[Verdict] = []
        async with guard.surviving_mask_loss(), aclosing(verdicts):
            async for verdict in verdicts:
                watch.note_verdict(asked, verdict)
                arrived.append(verdict)
                is_behind = goes_together and session.verifier.has_more
                if is_behind and not watch.planner.is_awaited:
                    continue

                # Commit and emit.
                tokens = [token for each in arrived for token in _accepted(asked, each)]
                delta = await commit(session, asked, arrived, tokens)
                arrived = []
                watch.note_emitting()
                yield delta
                watch.note_emitted()
                if delta.finish_reason is not None:
                    return
                # Others began to draft, so plan with them; or a draft came up that costs no step,
                # and the step under way is not the last one anyway.
                if watch.planner.is_awaited:
                    break
                if verdict.part + 1 < run_on and session.drafting.is_awaited:
                    break


async def commit(
    session: Session, asked: Round, verdicts: Sequence[Verdict], tokens: list[int]
) -> Delta:
    """Commit the tokens of verdicts on a round, up to the text's end; return what is to be seen.

    Raises:
        ConstraintViolation: a token breaks the grammar; nothing is committed then.
        Unavailable: the constraint replica is lost and no other was to be had in time.
    """
    first = verdicts[0]
    tokens = session.stops.until_eos(tokens)
    taken, new = await _take(session, tokens)
    if taken.finish_reason is not None:  # the client may be long in taking it
        session.watch.end_round()
        session.watch.planner.leave(len(session.generated))
    return Delta(
        taken.text,
        new,
        session.logprobs.shown(verdicts, len(tokens), taken),
        session.logprobs.of_prompt(first),
        taken.finish_reason,
        num_verdicts=len(verdicts),
        details=session.details.of(asked, first, taken),
        num_draft_tokens=sum(verdict.num_own_drafted for verdict in verdicts)
        + (len(asked.draft) if first.part == 0 else 0),
    )


async def resume(session: Session, tokens: Sequence[int]) -> Delta:
    """Commit tokens that the client has of a stream that broke; no pass makes them again.

    Raises:
        InvalidRequest: a token breaks the grammar.
        Unavailable: as for `commit`.
    """
    try:
        taken, new = await _take(session, session.stops.until_eos([*tokens]))
    except ConstraintViolation as error:
        raise InvalidRequest(
            f"resume_token_ids: {error.message}", param="resume_token_ids"
        ) from None
    return Delta(taken.text, new, finish_reason=taken.finish_reason, num_verdicts=0)


async def _take(session: Session, tokens: list[int]) -> tuple[StopResult, tuple[int, ...]]:
    return await take(tokens, session.stops, session.guard, session.committed, session.generated)


async def take(
    tokens: list[int], stops: StopChecker, guard: GrammarGuard | NoGrammar, *logs: TokenSequence
) -> tuple[StopResult, tuple[int, ...]]:
    """Commit tokens up to the text's end to all logs; return their text and what was committed.

    Raises:
        ConstraintViolation, Unavailable: as for `commit`.
    """
    await guard.validate(tokens)
    taken = stops.take(tokens)
    new = tokens[: taken.num_tokens]
    for log in logs:
        log.extend(new)
    return taken, tuple(new)


def _accepted(asked: Round, verdict: Verdict) -> list[int]:
    """Return the accepted tokens and the target's next token.

    The accepted ones are of the draft, or of one of the target's own.
    """
    return [*asked.draft[: verdict.num_accepted], *verdict.own, verdict.token]
