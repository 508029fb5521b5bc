from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from router.stops import StopChecker


class TextDetokenizer:
    """Token t stands for texts[t]; text of the token `slow` appears only at the flush."""

    def __init__(self, texts: Sequence[str], slow: int | None = None) -> None:
        self._texts = texts
        self._slow = slow
        self._late = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token_id in token_ids:
            if token_id == self._slow:
                self._late += self._texts[token_id]
            else:
                text += self._texts[token_id]
        return text

    def flush(self) -> str:
        late, self._late = self._late, ""
        return late


def checker(
    texts: Sequence[str],
    stop: Sequence[str] = (),
    max_tokens: int = 100,
    slow: int | None = None,
    eos_ids: Sequence[int] = (),
) -> StopChecker:
    return StopChecker(
        TextDetokenizer(texts, slow), eos_ids=eos_ids, stop=stop, max_tokens=max_tokens
    )


def test_eos_ends_the_text_and_is_counted_but_not_shown() -> None:
    stops = checker(["a", "b", "<eos>"], eos_ids=[2])
    taken = stops.take([0, 2, 1])
    assert (taken.num_tokens, taken.text, taken.finish_reason) == (2, "a", "stop")
    assert stops.num_tokens == 2


def test_until_eos_keeps_the_eos() -> None:
    stops = checker(["a", "b", "<eos>"], eos_ids=[2])
    assert stops.until_eos([0, 2, 1]) == [0, 2]
    assert stops.until_eos([0, 1]) == [0, 1]


def test_max_tokens_ends_within_a_round() -> None:
    stops = checker(["a", "b", "c"], max_tokens=2)
    taken = stops.take([0, 1, 2])
    assert (taken.num_tokens, taken.text, taken.finish_reason) == (2, "ab", "length")
    assert stops.remaining_tokens == 0


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stops = checker(["xE", "N", "y", "D"], stop=["END"])
    assert stops.take([0]).text == "x"
    assert stops.take([1]).text == ""
    assert stops.take([2]).text == "ENy"


def test_stop_string_across_tokens_and_rounds_is_cut() -> None:
    stops = checker(["xE", "N", "Dz"], stop=["END"])
    assert stops.take([0]).text == "x"
    taken = stops.take([1, 2, 0])
    assert (taken.num_tokens, taken.text, taken.finish_reason) == (2, "", "stop")


def test_the_earliest_stop_string_wins() -> None:
    taken = checker(["a##b--c"], stop=["--", "##"]).take([0])
    assert (taken.text, taken.finish_reason) == ("a", "stop")


def test_held_text_is_released_at_the_end_of_the_budget() -> None:
    stops = checker(["a", "E"], stop=["END"], max_tokens=2)
    taken = stops.take([0, 1])
    assert (taken.text, taken.finish_reason) == ("aE", "length")


def test_flushed_text_is_part_of_the_end() -> None:
    stops = checker(["a", "~", "<eos>"], slow=1, eos_ids=[2])
    assert stops.take([0, 1, 2]).text == "a~"


def test_flushed_text_may_complete_a_stop_string() -> None:
    stops = checker(["aEN", "D", "<eos>"], stop=["END"], slow=1, eos_ids=[2])
    assert stops.take([0]).text == "a"
    assert stops.take([1, 2]).text == ""


@pytest.mark.parametrize("seed", range(20))
def test_rounds_of_any_size_give_the_same_end(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["a", "b", "ab", "ba", "aab"]
    tokens = [rng.randrange(5) for _ in range(60)]
    stop = ["".join(rng.choice("ab") for _ in range(6)), "bbbb"]
    whole = "".join(texts[token] for token in tokens)
    cuts = [at for at in (whole.find(word) for word in stop) if at >= 0]

    def run(sizes: Sequence[int]) -> tuple[str, int]:
        stops = checker(texts, stop=stop, max_tokens=len(tokens))
        text, at = "", 0
        for size in sizes:
            taken = stops.take(tokens[at : at + size])
            text += taken.text
            at += size
            if taken.finish_reason is not None:
                break
        return text, stops.num_tokens

    one_by_one = run([1] * len(tokens))
    assert run([7] * 10) == one_by_one
    assert run([len(tokens)]) == one_by_one
    if not cuts:
        assert one_by_one[0] == whole
    else:
        # The end is where the first completed stop string begins.
        assert whole.startswith(one_by_one[0])
        assert any(whole.startswith(word, len(one_by_one[0])) for word in stop)


# --- min_tokens, stop strings in the text, offsets ------------------------------------------------


def with_terms(texts: Sequence[str], stop: Sequence[str], **terms: Any) -> StopChecker:
    given: dict[str, Any] = {"eos_ids": [], "max_tokens": 100} | terms
    return StopChecker(TextDetokenizer(texts, given.pop("slow", None)), stop=stop, **given)


def test_a_stop_string_within_min_tokens_does_not_stop() -> None:
    stops = with_terms(["a", "END", "b"], ["END"], min_tokens=2)
    taken = stops.take([0, 1, 2, 1, 2])
    assert (taken.num_tokens, taken.text, taken.finish_reason) == (4, "aENDb", "stop")


def test_a_stop_string_that_is_complete_behind_min_tokens_stops() -> None:
    stops = with_terms(["a", "EN", "D"], ["END"], min_tokens=2)
    assert stops.take([0, 1]).text == "a"
    taken = stops.take([2])
    assert (taken.num_tokens, taken.text, taken.finish_reason) == (1, "", "stop")


def test_max_tokens_within_min_tokens_shows_everything() -> None:
    stops = with_terms(["a", "END"], ["END"], min_tokens=2, max_tokens=2)
    assert stops.take([0, 1]).text == "aEND"


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 3, 2], [8]])
def test_min_tokens_ends_where_it_ends_whatever_the_rounds(sizes: list[int]) -> None:
    stops = with_terms(["x", "ab", "a", "b"], ["ab"], min_tokens=4)
    tokens, text, at = [1, 2, 3, 2, 3, 0, 0, 0], "", 0
    for size in sizes:
        taken = stops.take(tokens[at : at + size])
        text, at = text + taken.text, at + size
        if taken.finish_reason is not None:
            break
    assert (text, stops.num_tokens) == ("abab", 5)


def test_the_stop_string_may_be_part_of_the_text() -> None:
    taken = with_terms(["a-", "-b"], ["--", "-"], includes_stop=True).take([0, 1])
    assert (taken.num_tokens, taken.text) == (1, "a-")
    taken = with_terms(["a-", "-b"], ["--"], includes_stop=True).take([0, 1])
    assert (taken.num_tokens, taken.text) == (2, "a--")


def test_a_stop_token_may_be_part_of_the_text() -> None:
    for includes_stop, text in ((False, "a"), (True, "a.")):
        stops = with_terms(["a", "."], [], eos_ids=[1], includes_stop=includes_stop)
        taken = stops.take([0, 1])
        assert (taken.text, taken.finish_reason) == (text, "stop")
        assert taken.offsets == ((0, 1) if includes_stop else (0,))


def test_offsets_come_with_the_text_of_their_token() -> None:
    stops = with_terms(["xE", "N", "y", "z"], ["END"])
    assert stops.take([0]).offsets == (0,)  # its first character is shown
    assert stops.take([1]).offsets == ()
    assert stops.take([2, 3]).offsets == (2, 3, 4)


def test_what_a_stop_string_cuts_has_no_offset() -> None:
    stops = with_terms(["a", "bE", "N", "Dz", "c"], ["END"])
    taken = stops.take([0, 1, 2, 3])
    assert (taken.text, taken.offsets) == ("ab", (0, 1))


def test_the_parts_of_a_character_are_shown_together() -> None:
    stops = with_terms(["a", "", "", "€"], [])
    assert stops.take([0, 1]).offsets == (0,)
    assert stops.take([2]).offsets == ()
    assert stops.take([3]).offsets == (1, 1, 1)


def test_at_the_end_every_token_has_its_offset() -> None:
    stops = with_terms(["a", "~", "E"], ["END"], slow=1, max_tokens=3)
    assert stops.take([0, 1]).offsets == (0,)
    taken = stops.take([2])
    assert (taken.text, taken.offsets) == ("E~", (1, 1))
    stops = with_terms(["a", "", "<eos>"], [], eos_ids=[2])
    assert stops.take([0, 1, 2]).offsets == (0, 1)  # not that of the eos
