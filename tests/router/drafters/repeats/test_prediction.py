"""The prediction's drafter: how it follows an answer that leaves the predicted text and returns."""

from __future__ import annotations

import pytest

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.match_odds import MatchOdds, OddsPool
from router.drafters.repeats.prediction import PredictionDrafter
from router.predicted_text import PredictedText

PROMPT = [90, 91]
TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def drafter_of(
    predicted: list[int], *, eos_ids: tuple[int, ...] = (), pool: OddsPool | None = None
) -> tuple[PredictionDrafter, TokenSequence]:
    committed = TokenSequence(PROMPT)
    odds = MatchOdds(pool or OddsPool())
    return PredictionDrafter(committed, PredictedText(predicted), odds, eos_ids), committed


def test_it_begins_at_the_beginning_with_falling_survival() -> None:
    drafter, committed = drafter_of(TEXT)
    draft = drafter.look(committed, 4)
    assert list(draft.tokens) == TEXT[:4]
    assert 1.0 > draft.survival[0] > draft.survival[1] > draft.survival[2] > draft.survival[3] > 0.3


@pytest.mark.parametrize(
    ("said", "next_tokens"),
    [
        ([1, 2], [3, 4, 5]),
        (TEXT[:9], [10]),
        (TEXT, []),
        ([50], []),
        ([1, 2, 50], []),
        ([1, 2, 50, 4], [5, 6, 7]),  # one token was exchanged
        ([1, 2, 50, 51, 3], [4, 5, 6]),  # two were put in
        ([1, 2, 6], [7, 8, 9]),  # three were left out
    ],
)
def test_it_keeps_to_the_answers_place(said: list[int], next_tokens: list[int]) -> None:
    drafter, committed = drafter_of(TEXT)
    committed.extend(said)
    assert list(drafter.look(committed, 3).tokens) == next_tokens


def test_of_places_that_match_alike_the_nearest_counts() -> None:
    drafter, committed = drafter_of([1, 2, 3, 0, 5, 6, 0, 7, 8, 0, 9])
    committed.extend([1, 2, 3, 0, 5])
    drafter.look(committed, 1)
    committed.extend([50, 0])
    assert list(drafter.look(committed, 2).tokens) == [7, 8]


def test_the_prompt_is_no_part_of_a_match() -> None:
    drafter, committed = drafter_of([91, 4, 5, 6])
    assert list(drafter.look(committed, 2).tokens) == [91, 4]
    committed.extend([5])
    assert list(drafter.look(committed, 2).tokens) == [6]


def test_it_goes_on_behind_tokens_that_are_not_committed_and_back() -> None:
    drafter, committed = drafter_of(TEXT)
    committed.extend([1, 2])
    assert list(drafter.look(committed.followed_by([3, 4]), 2).tokens) == [5, 6]
    assert list(drafter.look(committed, 2).tokens) == [3, 4]


def test_a_draft_ends_before_eos() -> None:
    drafter, committed = drafter_of(TEXT, eos_ids=(3,))
    assert list(drafter.look(committed, 4).tokens) == [1, 2]


@pytest.mark.parametrize("is_right", [True, False])
def test_sessions_teach_each_other_what_predictions_are_worth(is_right: bool) -> None:
    pool = OddsPool()
    fresh = drafter_of(TEXT)[0].look(TokenSequence(PROMPT), 1).survival[0]
    for _ in range(30):
        drafter, committed = drafter_of(TEXT, pool=pool)
        drafter.look(committed, 3)
        committed.extend(TEXT[:3] if is_right else [50])
        drafter.look(committed, 3)
    taught = drafter_of(TEXT, pool=pool)[0].look(TokenSequence(PROMPT), 1).survival[0]
    assert taught > fresh + 0.1 if is_right else taught < fresh - 0.2


def test_a_wrong_token_teaches_once_however_long_the_answer_goes_its_own_way() -> None:
    pool = OddsPool()
    drafter, committed = drafter_of(TEXT, pool=pool)
    for novel in range(50, 80):
        drafter.look(committed, 3)
        committed.extend([novel])
    assert sum(pool.seen) == 1.0
