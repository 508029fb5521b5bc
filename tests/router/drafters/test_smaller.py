"""A smaller draft model guesses for a larger one while that is worth its steps and rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import draft_model
from router.drafters.smaller import SmallerDraft
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.costs import PassCosts
from tests.fakes.router import ScriptedDrafter, continuation
from tests.router.replies import proposal

LARGE, TINY = (draft_model(name, name, name).traits for name in ("large", "tiny"))
TEXT = TokenSequence([1, 2, 3])


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


@pytest.mark.parametrize(
    ("step_ms", "pass_ms", "guess_ms", "token_ms"), [(10.0, 10.0, 6.0, 4.0), (2.0, 3.0, 0.0, 0.75)]
)
def test_the_plan_sees_what_a_token_took_with_the_wait_for_its_guess(
    step_ms: float, pass_ms: float, guess_ms: float, token_ms: float
) -> None:
    costs = PassCosts()
    costs.observe_draft(LARGE, proposal(4, step_ms))
    assert costs.step_ms(LARGE.name, 1) == step_ms
    for _ in range(9):  # 3 tokens guessed in so long, then one pass says 4
        whole = proposal(4, step_ms, pass_ms=pass_ms)
        costs.observe_draft(LARGE, whole, num_guessed=3, num_right=3, guess_ms=guess_ms)
    assert costs.step_ms(LARGE.name, 1) == token_ms


def test_a_dear_row_or_a_shared_step_shortens_the_guess() -> None:
    costs = PassCosts()
    costs.observe_draft(LARGE, proposal(4, 2.0))
    price = costs.guess_price(LARGE.name)
    assert 0.0 < price < 1.0
    costs.observe_draft(LARGE, proposal(4, 2.0, num_sessions=4))
    assert costs.guess_price(LARGE.name) == pytest.approx(4 * price)


@pytest.mark.parametrize(
    ("num_right", "pass_ms", "price"),
    [
        (3, 2.0 + 3 * 1.5, 0.75),  # one pass, with 3 rows more than a step
        (0, 2.0 + 3 * 0.5 + 3 * 2.0, 0.25),  # then 3 steps, which are no part of it
    ],
)
def test_guesses_price_their_rows_alone(num_right: int, pass_ms: float, price: float) -> None:
    costs = PassCosts()
    for _ in range(200):
        guessed = proposal(4, 2.0, pass_ms=pass_ms)
        costs.observe_draft(LARGE, guessed, num_guessed=3, num_right=num_right)
    assert costs.guess_price(LARGE.name) == pytest.approx(price, abs=0.01)
