from __future__ import annotations

import pytest
from pydantic import ValidationError

from models.rewards.reward import Scored
from models.rewards.shape import Length, Pattern, Readability


@pytest.mark.parametrize(
    ("unit", "text", "length"),
    [
        ("words", "one two, three", 3),
        ("words", "don't", 1),
        ("characters", "four", 4),
        ("sentences", "One. Two! And thr", 2),
        ("sentences", "It costs 3.50 now", 0),
    ],
)
def test_lengths(unit: str, text: str, length: int) -> None:
    def scored(**window: int) -> Scored:
        reward = Length.model_validate({"unit": unit, **window})
        return reward.score(text[:2], text[2:], is_end=False)

    assert scored(max=max(length, 1)) == Scored(1.0, True)
    assert scored(min=length) == Scored(1.0, True)
    assert scored(min=length + 2).score == pytest.approx(length / (length + 2))
    if length > 1:
        assert scored(max=length - 1) == Scored(0.0, False, can_be_met=False)


def test_the_end_ends_a_sentence_and_hope() -> None:
    reward = Length(unit="sentences", min=2)
    assert reward.score("One. ", "Two", is_end=True).is_met
    assert not reward.score("One", "", is_end=True).can_be_met


@pytest.mark.parametrize("fields", [{"min": 3, "max": 2}, {"min": -1}, {"unit": "lines"}])
def test_wrong_windows_are_refused(fields: dict) -> None:
    with pytest.raises(ValidationError):
        Length.model_validate(fields)


def test_a_pattern_that_is_searched_for_may_always_come() -> None:
    reward = Pattern(pattern=r"\d{4}-\d\d")
    assert reward.score("in ", "2025-1", is_end=False) == Scored(0.5, False)
    assert reward.score("in ", "2025-11.", is_end=False) == Scored(1.0, True)
    assert reward.score("in ", "2025-1", is_end=True) == Scored(0.0, False, can_be_met=False)


def test_a_pattern_of_the_whole_text_is_lost_at_the_first_wrong_character() -> None:
    reward = Pattern(pattern=r"[a-c]+d", match="whole")
    assert reward.score("ab", "c", is_end=False) == Scored(0.5, False)
    assert reward.score("ab", "x", is_end=False) == Scored(0.0, False, can_be_met=False)
    assert reward.score("ab", "d", is_end=True) == Scored(1.0, True)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"pattern: missing \)"):
        Pattern(pattern="(")


def test_long_words_in_long_sentences_are_hard_to_read() -> None:
    reward = Readability(max_grade=6.0)
    easy = reward.score("The cat sat. ", "It was a big cat.", is_end=True)
    hard = reward.score(
        "Notwithstanding considerable institutional reluctance, ",
        "administrators nevertheless implemented comprehensive organisational restructuring.",
        is_end=True,
    )
    assert easy == Scored(1.0, True)
    assert hard == Scored(0.0, False, can_be_met=False)
    between = reward.score("The old farmer walked slowly towards the village", ".", is_end=False)
    assert 0.0 < between.score < 1.0


def test_no_words_read_as_nothing() -> None:
    assert Readability().score("", "", is_end=False) == Scored(0.0, False, can_be_met=True)
