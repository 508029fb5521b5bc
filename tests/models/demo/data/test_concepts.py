import random

import pytest
import snowballstemmer

from models.demo.data.concepts import (
    LOOKS,
    MOODS,
    NOUNS,
    PLACES,
    VERBS,
    draw_concepts,
    held_out_sets,
    ing_form,
    make_concept_task,
    number_form,
    past_form,
    prompt_of,
    s_form,
)
from models.rewards.words import Concepts, words_of


def stem(word: str) -> str:
    return str(snowballstemmer.stemmer("english").stemWord(word))


@pytest.mark.parametrize("held_out", [False, True])
def test_every_sentence_meets_the_reward_of_its_concepts(held_out: bool) -> None:
    rng = random.Random(1)
    for _ in range(1000):
        concepts, sentence = draw_concepts(rng, held_out)
        assert 3 <= len(set(concepts)) == len(concepts) <= 5
        assert Concepts(concepts=list(concepts)).score(sentence, "", is_end=True).is_met, sentence


def test_words_keep_their_stems_in_every_form() -> None:
    for verb in VERBS:
        forms = {s_form(verb), ing_form(verb), past_form(verb) or verb}
        assert {stem(form) for form in forms} == {stem(verb)}, forms
    for noun in NOUNS:
        assert stem(number_form(noun) or noun) == stem(noun)


def test_no_two_words_have_one_stem() -> None:
    """Else one word of a sentence would cover two concepts."""
    words = {*NOUNS, *VERBS, *PLACES, *MOODS, *LOOKS}
    assert len({stem(word) for word in words}) == len(words) > 300


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("run", ("runs", "running", None)),
        ("stop", ("stops", "stopping", "stopped")),
        ("play", ("plays", "playing", "played")),
        ("carry", ("carries", "carrying", "carried")),
        ("listen", ("listens", "listening", "listened")),
        ("dance", ("dances", "dancing", "danced")),
        ("fix", ("fixes", "fixing", "fixed")),
        ("repair", ("repairs", "repairing", "repaired")),
        ("teach", ("teaches", "teaching", None)),
    ],
)
def test_verbs_are_spelt_as_in_english(verb: str, forms: tuple[str, str, str | None]) -> None:
    assert (s_form(verb), ing_form(verb), past_form(verb)) == forms


def test_no_held_out_set_is_in_training_in_any_order() -> None:
    held_out = {frozenset(concepts) for concepts in held_out_sets(1500, seed=1)}
    rng = random.Random(2)
    trained = {frozenset(draw_concepts(rng, held_out=False)[0]) for _ in range(20_000)}
    assert not held_out & trained
    # Sets of two seeds do meet: only the split keeps them apart.
    others = {frozenset(concepts) for concepts in held_out_sets(6000, seed=2)}
    assert held_out & others


def test_held_out_sets_are_those_of_their_seed() -> None:
    sets = held_out_sets(60, seed=3)
    assert sets == held_out_sets(60, seed=3)
    assert sets[:20] == held_out_sets(20, seed=3)
    assert sets != held_out_sets(60, seed=4)
    assert len({frozenset(concepts) for concepts in sets}) == 60
    assert {len(concepts) for concepts in sets} == {3, 4, 5}
    assert all(any(word in VERBS for word in concepts) for concepts in sets)


def test_the_request_names_the_concepts() -> None:
    assert prompt_of(("dog", "ball", "throw")) == "Write one sentence with: dog, ball, throw."
    first, again = (make_concept_task(random.Random(5), held_out=False) for _ in range(2))
    assert first == again
    asked, answer = first.turns[0][1], first.answer
    assert asked.startswith("Write one sentence with: ")
    assert answer[0].isupper()
    assert answer.endswith(".")


def test_sentences_differ_in_order_and_have_more_than_was_asked_for() -> None:
    rng = random.Random(6)
    drawn = [draw_concepts(rng, held_out=False) for _ in range(500)]
    in_order, extra = 0, 0
    vocabulary = {stem(word) for word in (*NOUNS, *VERBS, *PLACES, *MOODS, *LOOKS)}
    for concepts, sentence in drawn:
        stems = [stem(word) for word in words_of(sentence)]
        places = [stems.index(stem(word)) for word in concepts]
        in_order += places == sorted(places)
        extra += len(vocabulary.intersection(stems)) > len(concepts)
    assert in_order < 0.25 * len(drawn)
    assert extra > 0.3 * len(drawn)
    assert len({sentence.split()[0] for _, sentence in drawn}) > 15
