"""Shadow drafts: compared with the text, given up in time, never in the way."""

from __future__ import annotations

import asyncio

from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.shadow import ShadowDraft
from router.planning.costs import PassCosts
from tests.fakes.router import ScriptedDrafter, alone, continuation

PROMPT = [5, 9, 2]


def _counts(shadow: ShadowDraft) -> tuple[int, int]:
    """Tokens drafted and matched by an outcome that is there."""
    outcome = shadow.outcome()
    assert outcome is not None
    num_drafted, num_matched, elapsed_ms = outcome
    assert elapsed_ms >= 0.0
    return num_drafted, num_matched


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_would_have_stood_is_counted() -> None:
    committed = TokenSequence(PROMPT)
    shadow = ShadowDraft(alone(ScriptedDrafter([2])), committed, PassCosts())
    shadow.start(3)
    await settle()
    committed.extend(continuation(PROMPT, 9))
    assert _counts(shadow) == (3, 2)
    assert shadow.outcome() is None


async def test_nothing_is_known_before_the_draft_is_there() -> None:
    committed = TokenSequence(PROMPT)
    shadow = ShadowDraft(alone(ScriptedDrafter([None])), committed, PassCosts())
    assert shadow.outcome() is None
    shadow.start(3)
    assert shadow.outcome() is None
    await settle()
    assert _counts(shadow) == (0, 0), "the text does not reach so far"


async def test_a_lost_drafter_gives_no_outcome() -> None:
    committed = TokenSequence(PROMPT)
    shadow = ShadowDraft(alone(ScriptedDrafter([None], fails_at=[0])), committed, PassCosts())
    shadow.start(3)
    await settle()
    assert _counts(shadow) == (0, 0)


async def test_one_at_a_time_and_steps_are_measured() -> None:
    drafter, costs = ScriptedDrafter([None]), PassCosts()
    shadow = ShadowDraft(alone(drafter), TokenSequence(PROMPT), costs)
    shadow.start(3)
    shadow.start(3)
    await settle()
    assert drafter.num_calls == 1
    assert costs.step_ms(DRAFT_MODEL.name, 1) > 0.0


async def test_what_is_cancelled_has_no_outcome() -> None:
    shadow = ShadowDraft(alone(ScriptedDrafter([None])), TokenSequence(PROMPT), PassCosts())
    shadow.start(3)
    await shadow.cancel()
    await shadow.cancel()
    assert shadow.outcome() is None
