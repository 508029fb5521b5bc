from __future__ import annotations

import json
import time
from typing import Any

import pytest

from models.rewards.reach import Reach, Span, span_of
from models.rewards.registry import Rewards

CONCEPTS = {"kind": "concepts", "concepts": ["dog"]}
LENGTH = {"kind": "length", "max": 9}
PATTERN = {"kind": "pattern", "pattern": "a"}


def summed(*rewards: Any) -> dict[str, Any]:
    return {"kind": "weighted", "parts": [{"reward": reward} for reward in rewards]}


@pytest.mark.parametrize(
    ("reward", "span"),
    [
        (CONCEPTS, Span(Reach.BOUNDED, 1, 0)),
        (LENGTH, Span(Reach.BOUNDED, 0, 1)),
        (summed(CONCEPTS, LENGTH, summed(LENGTH, CONCEPTS)), Span(Reach.BOUNDED, 2, 2)),
        (PATTERN, Span(Reach.DATA)),
        (summed(LENGTH, summed(PATTERN)), Span(Reach.DATA)),
        ({"kind": "classifier", "model": "m", "label": "l"}, Span(Reach.DATA)),
        ({"kind": "theirs"}, Span(Reach.CODE)),
        (summed(LENGTH, summed({"kind": "theirs"})), Span(Reach.CODE)),
        (summed(), Span(Reach.CODE)),
        (summed(1), Span(Reach.CODE)),
        ({"kind": ["length"]}, Span(Reach.CODE)),
        ({"kind": "weighted", "parts": 1}, Span(Reach.CODE)),
        ({"kind": "words", "required": ["x" * 5000]}, Span(Reach.CODE)),  # too long to look into
        ([], Span(Reach.CODE)),
    ],
)
def test_a_reward_reaches_as_far_as_its_farthest_part(reward: Any, span: Span) -> None:
    assert span_of(json.dumps(reward)) == span


@pytest.mark.parametrize("text", ["", "{", "[" * 4000, '{"kind": '])
def test_what_is_no_reward_counts_as_code(text: str) -> None:
    assert span_of(text).reach is Reach.CODE


def test_every_kind_of_this_package_is_placed() -> None:
    kinds = ("concepts", "words", "length", "readability", "pattern", "classifier")
    assert all(span_of(json.dumps({"kind": kind})).reach is not Reach.CODE for kind in kinds)


def test_work_counts_the_parts_and_what_each_look_ahead_brings() -> None:
    text = "x" * 99 + "."
    assert Span(Reach.BOUNDED, 0, 1).work(text, ["y" * 30, "z" * 30]) == (200 + 60) / 16 + 2
    assert Span(Reach.BOUNDED, 2, 0).work(text, ["y" * 60]) == 2 * 160 + 2 * 160 / 16 + 2
    assert Span(Reach.BOUNDED, 0, 1).work("", [""] * 100_000) == 100_000


@pytest.mark.parametrize(("end", "num_open"), [("dog", 3), (" ", 0), ("don'", 4), ("a" * 900, 64)])
def test_a_last_word_that_goes_on_is_stemmed_for_each_look_ahead(end: str, num_open: int) -> None:
    span = Span(Reach.BOUNDED, 1, 0)
    grown = span.work(f"so. {end}", ["s"] * 9) - span.work("." * (4 + len(end)), ["s"] * 9)
    assert grown == 9 * num_open * (1 + 1 / 16)


@pytest.mark.parametrize(("length", "covered"), [(61, 1.0), (62, 0.0)])
def test_words_longer_than_any_concept_are_not_stemmed(length: int, covered: float) -> None:
    made = Rewards().make({"kind": "concepts", "concepts": ["a" * length]})
    assert made.score(f"so {'a' * length}ing.", "", is_end=True).score == covered


WORST = {  # for the stemmers, the splitting of words, and that of sentences
    "words": " ".join(f"{index:x}".translate(str.maketrans("0123456789", "ghijklmnop")) + "izing"
                      for index in range(10_000)),
    "one word": "ay" * 20_000,
    "stops": "." * 50_000 + "x",
    "apostrophes": "a'" * 20_000,
}  # fmt: skip


@pytest.mark.parametrize("text", WORST.values(), ids=WORST)
@pytest.mark.parametrize(
    "reward",
    [
        *(CONCEPTS | {"language": language} for language in ("english", "arabic", "greek")),
        {"kind": "length", "unit": "sentences", "min": 3},
        {"kind": "readability"},
        {"kind": "words", "required": ["dog"]},
    ],
    ids=lambda reward: reward.get("language", reward["kind"]),
)
def test_work_bounds_what_a_text_takes(reward: dict[str, Any], text: str) -> None:
    span, made = span_of(json.dumps(reward)), Rewards().make(reward)
    while span.work(text, [""]) > 4096.0:
        text = text[: int(0.9 * len(text))]
    began_s = time.process_time()
    made.score(text, "", is_end=False)
    assert time.process_time() - began_s < 0.5  # some 0.1 s in the dearest case


def test_stops_in_a_row_are_looked_at_once() -> None:
    made = Rewards().make({"kind": "length", "unit": "sentences", "min": 3})
    began_s = time.process_time()
    assert made.score("." * 200_000 + "x", " One... Two?! ...", is_end=False).score == 1.0
    assert time.process_time() - began_s < 2.0
