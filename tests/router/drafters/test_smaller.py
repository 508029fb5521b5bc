"""A smaller draft model guesses for a larger one while that is worth its steps and rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from models.protocol.messages import Proposal, Timing
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import draft_model
from router.drafters.smaller import SmallerDraft
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.costs import PassCosts
from tests.fakes.router import ScriptedDrafter, continuation

LARGE, TINY = (draft_model(name, name, name).traits for name in ("large", "tiny"))
TEXT = TokenSequence([1, 2, 3])


def proposal(
    num_tokens: int, step_ms: float, *, pass_ms: float | None = None, num_sessions: int = 1
) -> Proposal:
    """`pass_ms`: of its passes together; None: a step for each token."""
    in_steps_ms = num_tokens * step_ms
    timing = Timing(pass_ms=in_steps_ms if pass_ms is None else pass_ms, num_sessions=num_sessions)
    tokens = list(range(num_tokens))
    return Proposal(session_id="s", seq=1, tokens=tokens, timing=timing, step_ms=step_ms)


class Staged:
    """A session whose large draft model has a tiny one."""

    def __init__(self, tiny_step_ms: float, drafts_for: str = "large", *fails_at: int) -> None:
        self.costs = PassCosts()
        self.costs.observe_draft(LARGE, proposal(4, 10.0))
        self.costs.observe_draft(TINY, proposal(4, tiny_step_ms))
        self.tiny = ScriptedDrafter([None], fails_at=fails_at)
        self.num_made = 0
        odds = AcceptanceEstimate(AcceptancePool(0.8))
        self.smaller = SmallerDraft(TINY, drafts_for, self._make, odds, self.costs)

    def _make(self) -> ScriptedDrafter:
        self.num_made += 1
        return self.tiny

    async def guess(self, num_draft_tokens: int) -> Sequence[int]:
        asked = await self.smaller.guess(TEXT, num_draft_tokens, LARGE)
        if asked is None or asked.proposal is None:
            return []
        assert asked.drafter is TINY
        return asked.proposal.tokens


async def test_it_guesses_all_but_the_last_token() -> None:
    staged = Staged(tiny_step_ms=1.0)
    assert await staged.guess(4) == continuation(TEXT.ids, 3)
    assert await staged.guess(1) == []
    assert staged.num_made == 1
    staged.tiny.is_ready = False
    assert await staged.guess(4) == []
    await staged.smaller.close()
    assert staged.tiny.is_closed


async def test_it_is_asked_for_no_more_than_its_steps_are_worth() -> None:
    # A token costs 0.15 of a step for its row and its own step; it survives with 0.8 ** j.
    lengths = {step_ms: len(await Staged(step_ms).guess(8)) for step_ms in (0.5, 3.0, 5.0, 9.0)}
    assert lengths == {0.5: 7, 3.0: 3, 5.0: 1, 9.0: 0}


async def test_what_the_larger_one_does_not_say_is_tried_now_and_then() -> None:
    staged = Staged(tiny_step_ms=1.0)
    asked = []
    for _ in range(300):
        guess = await staged.guess(4)
        asked.append(len(guess))
        if guess:
            staged.smaller.learn(guess, [0, 0, 0, 0])  # 0 is never said
    assert asked[0] == 3
    assert set(asked[200:]) == {0, 1}
    assert 0 < sum(asked[200:]) < 10


async def test_it_guesses_for_nobody_else_and_its_loss_is_no_loss() -> None:
    assert await Staged(1.0, "another").guess(4) == []
    staged = Staged(1.0, "large", 0)
    assert await staged.guess(4) == []
    assert await staged.guess(4) == continuation(TEXT.ids, 3)


def test_the_plan_sees_the_wait_for_a_guess() -> None:
    costs = PassCosts()
    costs.observe_draft(LARGE, proposal(4, 10.0))
    for _ in range(9):  # 3 tokens guessed in 6 ms, then one pass of 10 ms says 4
        whole = proposal(4, 10.0, pass_ms=10.0)
        costs.observe_draft(LARGE, whole, num_guessed=3, num_right=3, guess_ms=6.0)
    assert costs.step_ms("large", 1) == 4.0


def test_a_dear_row_or_a_shared_step_shortens_the_guess() -> None:
    costs = PassCosts()
    costs.observe_draft(LARGE, proposal(4, 2.0))
    price = costs.guess_price(LARGE.name)
    assert 0.0 < price < 1.0
    costs.observe_draft(LARGE, proposal(4, 2.0, num_sessions=4))
    assert costs.guess_price(LARGE.name) == pytest.approx(4 * price)
    for _ in range(100):  # 3 tokens guessed, all right: one pass, with 3 rows more than a step
        costs.observe_draft(
            LARGE, proposal(4, 2.0, pass_ms=2.0 + 3 * 1.5), num_guessed=3, num_right=3
        )
    assert costs.guess_price(LARGE.name) == pytest.approx(0.75, abs=0.01)


def test_the_plan_sees_what_a_token_took() -> None:
    costs = PassCosts()
    costs.observe_draft(LARGE, proposal(4, 2.0))
    assert costs.step_ms(LARGE.name, 1) == 2.0
    for _ in range(9):
        costs.observe_draft(LARGE, proposal(4, 2.0, pass_ms=3.0), num_guessed=3, num_right=3)
    assert costs.step_ms(LARGE.name, 1) == 0.75


def test_wrong_guesses_price_their_rows_alone() -> None:
    costs = PassCosts()
    for _ in range(200):  # a step of 2 ms with 3 rows of 0.5 ms each, then 3 steps
        costs.observe_draft(
            LARGE, proposal(4, 2.0, pass_ms=3.5 + 3 * 2.0), num_guessed=3, num_right=0
        )
    assert costs.guess_price(LARGE.name) == pytest.approx(0.25, abs=0.01)
