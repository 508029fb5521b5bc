from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from models.rewards.reward import Scored
from models.rewards.words import Concepts, Words


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("A dog", 1 / 3),
        ("The DOGS were running.", 2 / 3),
        ("Dogs run and she catches one", 1.0),
        ("a hotdog reruns", 0.0),  # stems are of whole words
    ],
)
def test_concepts_are_covered_by_stems(text: str, share: float) -> None:
    reward = Concepts(concepts=["dog", "run", "Catch"])
    scored = reward.score(text[:4], text[4:], is_end=False)
    assert scored.score == pytest.approx(share)
    assert (scored.is_met, scored.can_be_met) == (share == 1.0, True)
    assert reward.score(text, "", is_end=True).can_be_met == (share == 1.0)


def test_concepts_of_another_language() -> None:
    german = Concepts(concepts=["Haus"], language="german")
    assert german.score("Viele ", "Häuser", is_end=True).score in (0.0, 1.0)
    assert german.score("Im ", "Hause", is_end=True).is_met


def test_two_concepts_of_one_stem_are_one() -> None:
    assert Concepts(concepts=["run", "running"]).score("runs", "", is_end=False).score == 1.0


@pytest.mark.parametrize(
    ("reward", "fields", "fault"),
    [
        (Concepts, {"concepts": []}, "at least 1"),
        (Concepts, {"concepts": ["a"] * 65}, "at most 64"),
        (Concepts, {"concepts": ["two words"]}, "one word"),
        (Concepts, {"concepts": ["x" * 65]}, "at most 64"),
        (Concepts, {"concepts": ["a"], "language": "klingon"}, "language"),
        (Concepts, {"concepts": ["a"], "words": []}, "words"),
        (Concepts, {"concepts": [1]}, "string"),
        (Words, {}, "must have a word"),
        (Words, {"required": ["A"], "forbidden": ["a"]}, "forbidden as well"),
        (Words, {"required": ["a b"]}, "one word"),
        (Words, {"forbidden": ["!"]}, "one word"),
        (Words, {"required": [""]}, "at least 1"),
    ],
)
def test_wrong_words_are_refused(reward: type[BaseModel], fields: dict, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        reward.model_validate(fields)


def test_words_count_as_they_are_written() -> None:
    reward = Words(required=["red", "Fox"], forbidden=["ass"])
    assert reward.score("A red", " ", is_end=False) == Scored(0.5, False)
    assert reward.score("A red ", "fox", is_end=True) == Scored(1.0, True)
    assert reward.score("redder foxes", "", is_end=True) == Scored(0.0, False, can_be_met=False)


def test_a_last_word_that_may_go_on_is_none_yet() -> None:
    reward = Words(required=["red"], forbidden=["ass"])
    assert reward.score("red", " ass", is_end=False) == Scored(1.0, True)  # "assist" may follow
    assert reward.score("red", " ass'", is_end=False) == Scored(1.0, True)  # "ass's"
    assert reward.score("red", " ass_", is_end=False) == Scored(1.0, True)
    assert reward.score("re", "d", is_end=False) == Scored(0.0, False)
    ended = Scored(0.0, False, can_be_met=False)
    assert reward.score("red", " ass.", is_end=False) == ended
    assert reward.score("red", " ass", is_end=True) == ended


def test_without_required_words_a_clean_text_is_whole() -> None:
    assert Words(forbidden=["no"]).score("", "", is_end=True) == Scored(1.0, True)
