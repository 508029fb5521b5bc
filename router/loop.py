"""One session as a coroutine: plan, draft, verify, validate, commit, emit, until the text ends.

This is the algorithm; everything else is inside the parts of a `Session`. Plain decoding is the
same loop with k = 0, where the target goes on alone between messages. A round emits the accepted
draft tokens and exactly one token of the target's own. It is the recovered token after the first
rejection, or the bonus token after a whole draft. Both caches roll back when the next message names
a shorter prefix. Leviathan et al. 2211.17192, Chen et al. 2302.01318; verification by shared noise
(2408.07978) happens in the target engine.

Take k = 4, a draft [a, b, c, d] and a verdict (2 accepted, token x). The round commits a, b, x:

    committed  ... | a b x |          next round drafts after x
    draft          | a b c d          c was rejected, d never looked at
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from models.protocol.messages import Verdict
from router.rounds import Round
from router.session import Session
from router.types import Delta


async def run_session(session: Session) -> AsyncGenerator[Delta, None]:
    """Generate until the text ends; the last delta has the finish reason.

    Raises:
        ServingError: the session cannot go on; what was yielded before stays valid.
    """
    stops, guard, watch = session.stops, session.guard, session.watch
    while True:
        # Plan and draft: up to k tokens, by one of the session's drafters.
        asked = await session.drafting.next_round(stops.remaining_tokens)
        run_on = min(asked.plan.run_on, stops.remaining_tokens - 1 - len(asked.draft))

        # Verify: one target pass over k + 1 positions, then `run_on` plain steps.
        watch.note_asked()
        verdicts = session.verifier.verify(
            session.committed, asked.draft, max(0, run_on), asked.draft_probs
        )
        async with guard.surviving_mask_loss(), aclosing(verdicts):
            async for verdict in verdicts:
                tokens = stops.until_eos(_accepted(asked, verdict))
                watch.note_verdict(asked, verdict)

                # Validate before anything of it is seen, cut at the end of the text, commit.
                await guard.validate(tokens)
                taken = stops.take(tokens)
                new = tokens[: taken.num_tokens]
                session.committed.extend(new)
                session.generated.extend(new)

                # Emit.
                shown = session.logprobs.shown(verdict, tokens, taken)
                of_prompt = session.logprobs.of_prompt(verdict)
                details = session.details.of(asked, verdict, taken)
                watch.note_emitting()
                yield Delta(
                    taken.text,
                    tuple(new),
                    shown,
                    of_prompt,
                    taken.finish_reason,
                    details=details,
                    num_draft_tokens=verdict.num_own_drafted
                    + (len(asked.draft) if verdict.part == 0 else 0),
                )
                watch.note_emitted()
                if taken.finish_reason is not None:
                    return
                # Others began to draft, so plan with them; or a draft came up that costs no step,
                # and the step under way is not the last one anyway.
                if watch.planner.is_awaited:
                    break
                if verdict.part + 1 < run_on and session.drafting.is_awaited:
                    break


def _accepted(asked: Round, verdict: Verdict) -> list[int]:
    """Return the accepted tokens and the target's next token.

    The accepted ones are of the draft, or of one of the target's own.
    """
    return [*asked.draft[: verdict.num_accepted], *verdict.own, verdict.token]
