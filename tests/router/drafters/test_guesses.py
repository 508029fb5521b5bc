"""What is guessed for the draft model: priced by its rows, learnt from its drafts."""

from __future__ import annotations

import pytest

from models.protocol.messages import Proposal, Timing
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.guesses import Guesses
from router.drafters.repeats.match_odds import MatchOdds, OddsPool
from router.drafters.repeats.suffix import SUFFIX, SuffixDrafter
from router.drafters.repeats.suffix_index import MatchTerms
from router.drafters.side_by_side import SessionDrafters
from router.planning.costs import PassCosts
from tests.fakes.router import ScriptedDrafter

MODEL = DRAFT_MODEL.traits
TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]


def proposal(num_tokens: int, pass_ms: float, num_sessions: int = 1) -> Proposal:
    timing = Timing(pass_ms=pass_ms, num_sessions=num_sessions)
    return Proposal(
        session_id="s", seq=1, tokens=list(range(num_tokens)), timing=timing, step_ms=2.0
    )


def guesses(costs: PassCosts, *, is_on: bool = True) -> Guesses:
    committed = TokenSequence(TEXT)
    suffix = SuffixDrafter("s", committed, MatchTerms(max_spec_factor=4.0), MatchOdds(OddsPool()))
    drafters = SessionDrafters(
        [(MODEL, lambda: ScriptedDrafter([None])), (SUFFIX.traits, lambda: suffix)], guesses=is_on
    )
    return Guesses(drafters, MatchOdds(OddsPool()), costs)


def test_it_guesses_what_followed_before_and_leaves_the_last_token_to_the_model() -> None:
    costs = PassCosts()
    made = guesses(costs)
    text = TokenSequence(TEXT)
    assert not made.next(text, 4)  # what a step takes is not known
    costs.observe_draft(MODEL, proposal(3, 6.0))
    assert list(made.next(text, 4)) == [4, 5, 6]
    assert list(made.next(text, 2)) == [4]
    assert not made.next(text, 1)
    assert not made.next(TokenSequence([*TEXT, 9]), 4)
    assert not guesses(costs, is_on=False).next(text, 4)


def test_it_stops_guessing_what_the_model_does_not_say() -> None:
    costs, text = PassCosts(), TokenSequence(TEXT)
    costs.observe_draft(MODEL, proposal(3, 6.0))
    made = guesses(costs)
    for _ in range(60):
        made.learn(made.next(text, 4), [9, 9, 9, 9])
    assert not made.next(text, 4)


def test_a_dear_row_or_a_shared_step_shortens_the_guess() -> None:
    costs = PassCosts()
    costs.observe_draft(MODEL, proposal(4, 8.0))
    price = costs.guess_price(MODEL.name)
    assert 0.0 < price < 1.0
    costs.observe_draft(MODEL, proposal(4, 8.0, num_sessions=4))
    assert costs.guess_price(MODEL.name) == pytest.approx(4 * price)
    for _ in range(100):  # 3 tokens guessed, all right: one pass, with 3 rows more than a step
        costs.observe_draft(MODEL, proposal(4, 2.0 + 3 * 1.5), num_guessed=3, num_right=3)
    assert costs.guess_price(MODEL.name) == pytest.approx(0.75, abs=0.01)


def test_the_plan_sees_what_a_token_took() -> None:
    costs = PassCosts()
    costs.observe_draft(MODEL, proposal(4, 8.0))
    assert costs.step_ms(MODEL.name, 1) == 2.0
    for _ in range(9):
        costs.observe_draft(MODEL, proposal(4, 3.0), num_guessed=3, num_right=3)
    assert costs.step_ms(MODEL.name, 1) == 0.75


def test_wrong_guesses_price_their_rows_alone() -> None:
    costs = PassCosts()
    for _ in range(200):  # a step of 2 ms with 3 rows of 0.5 ms each, then 3 steps
        costs.observe_draft(MODEL, proposal(4, 3.5 + 3 * 2.0), num_guessed=3, num_right=0)
    assert costs.guess_price(MODEL.name) == pytest.approx(0.25, abs=0.01)
