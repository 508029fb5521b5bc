"""The probabilities of outcomes: by margins, learnt from verifications."""

from __future__ import annotations

import random

import pytest

from models.engine.drafting.outcomes import Outcomes

SURE, UNSURE = 5.0, 0.1


def learnt(num_outcomes: int = 3000) -> Outcomes:
    """Tokens with a large margin are said by the target in 95%, others in 40%."""
    outcomes, dice = Outcomes(), random.Random(1)
    for _ in range(num_outcomes):
        margins = [dice.choice((SURE, UNSURE)) for _ in range(4)]
        rights = [dice.random() < (0.95 if margin == SURE else 0.4) for margin in margins]
        num_accepted = rights.index(False) if False in rights else 4
        rank = 0 if num_accepted == 4 else dice.choice((1, 1, 1, 2, None))
        outcomes.learn(margins, num_accepted, rank, is_greedy=True)
    return outcomes


def test_shares_are_kept_by_margin() -> None:
    outcomes = learnt()
    assert outcomes.agreement(SURE, is_greedy=True) == pytest.approx(0.95, abs=0.1)
    assert outcomes.agreement(UNSURE, is_greedy=True) == pytest.approx(0.4, abs=0.2)
    before = Outcomes().agreement(UNSURE, is_greedy=False)
    assert outcomes.agreement(UNSURE, is_greedy=False) == before


def test_ranks_are_those_of_rejections() -> None:
    ranks = learnt().ranks
    assert ranks[1] == pytest.approx(0.6, abs=0.2)
    assert ranks[2] == pytest.approx(0.2, abs=0.2)


def test_outcomes_of_a_draft_add_up_to_one() -> None:
    ends, whole = learnt().of_draft([SURE, UNSURE, SURE], is_greedy=True)
    assert sum(ends) + whole == pytest.approx(1.0)
    assert max(ends) == ends[1]


def test_a_draft_whose_last_row_is_missing_teaches_of_its_tokens_alone() -> None:
    outcomes = Outcomes()
    before = outcomes.agreement(SURE, is_greedy=True)
    ranks = list(outcomes.ranks)
    outcomes.learn([SURE, SURE], 2, 0, is_greedy=True)
    assert outcomes.agreement(SURE, is_greedy=True) > before
    assert outcomes.ranks == ranks
