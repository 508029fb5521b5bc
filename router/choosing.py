"""One session whose text is one of a list: the target weighs all of it and draws, in one question.

There are no drafts and no masks. The drawn choice commits like a verdict on an accepted whole
draft. It has the choice's tokens, and behind them a token that ends the text.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from models.protocol.messages import Chosen, Verdict
from router.loop import commit
from router.planning.round_plan import RoundPlan
from router.rounds import Round
from router.session import Session
from router.types import Delta

_PLAN = RoundPlan(0, 0, reason="choices are weighed")


async def run_choice(
    session: Session, choices: Sequence[Sequence[int]]
) -> AsyncGenerator[Delta, None]:
    """Generate one delta with the whole text; a stop string or `max_tokens` may cut it.

    Raises:
        ServingError: the session cannot go on.
    """
    assert session.chooser is not None, "nobody weighs the choices"
    asked = Round(plan=_PLAN, planned_at=time.perf_counter())
    session.watch.note_asked()
    chosen = await session.chooser.choose(session.committed, choices)
    choice = choices[chosen.index]
    verdict = _as_verdict(chosen, len(choice))
    session.watch.note_verdict(asked, verdict)
    delta = await commit(session, asked, [verdict], [*choice, chosen.end_token])
    session.watch.note_emitting()
    yield replace(delta, choice_logprobs=tuple(chosen.logprobs))
    session.watch.note_emitted()


def _as_verdict(chosen: Chosen, num_tokens: int) -> Verdict:
    return Verdict(
        session_id=chosen.session_id,
        seq=chosen.seq,
        part=0,
        num_accepted=num_tokens,
        token=chosen.end_token,
        is_last=True,
        timing=chosen.timing,
        logprobs=chosen.token_logprobs,
        prompt_logprobs=chosen.prompt_logprobs,
        num_cached_tokens=chosen.num_cached_tokens,
    )
