from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from router.stops import StopChecker, StopResult

EOS = "<eos>"
END = {"stop": ["END"]}


class Text:
    """Tokens are named by their texts; the text of one that begins with ~ comes at the flush."""

    def __init__(self, **terms: Any) -> None:
        self._names = [EOS]
        self._late = ""
        given: dict[str, Any] = {"stop": (), "max_tokens": 100} | terms
        self.stops = StopChecker(self, eos_ids=[0], **given)

    def push(self, token_ids: Sequence[int]) -> str:
        names = [self._names[token_id] for token_id in token_ids]
        self._late += "".join(name[1:] for name in names if name.startswith("~"))
        return "".join(name for name in names if not name.startswith("~"))

    def flush(self) -> str:
        late, self._late = self._late, ""
        return late

    def ids(self, names: Sequence[str]) -> list[int]:
        self._names += [name for name in names if name not in self._names]
        return [self._names.index(name) for name in names]

    def take(self, names: Sequence[str]) -> StopResult:
        return self.stops.take(self.ids(names))

    def run(self, names: Sequence[str], sizes: Sequence[int]) -> tuple[str, int]:
        """Return the text and the number of tokens, taken in rounds of these sizes."""
        text, at = "", 0
        for size in sizes:
            taken = self.take(names[at : at + size])
            text, at = text + taken.text, at + size
            if taken.finish_reason is not None:
                break
        return text, self.stops.num_tokens


# The terms, the tokens of each round; of each the number taken, the text shown, and why it ended.
ENDS: dict[str, tuple[dict[str, Any], list[list[str]], list[tuple[int, str, str]]]] = {
    "eos is counted but not shown": ({}, [["a", EOS, "b"]], [(2, "a", "stop")]),
    "eos is shown": ({"includes_stop": True}, [["a", EOS]], [(2, "a<eos>", "stop")]),
    "max_tokens within a round": ({"max_tokens": 2}, [["a", "b", "c"]], [(2, "ab", "length")]),
    "what may begin a stop string is held back": (
        *(END, [["xE"], ["N"], ["y"]]),
        [(1, "x", ""), (1, "", ""), (1, "ENy", "")],
    ),
    "across rounds": (END, [["xE"], ["N", "Dz", "xE"]], [(1, "x", ""), (2, "", "stop")]),
    "the earliest of two": ({"stop": ["--", "##"]}, [["a##b--c"]], [(1, "a", "stop")]),
    "held back to the last": (END | {"max_tokens": 2}, [["a", "E"]], [(2, "aE", "length")]),
    "flushed": ({}, [["a", "~b", EOS]], [(3, "ab", "stop")]),
    "completed by the flush": (END, [["aEN"], ["~D", EOS]], [(1, "a", ""), (2, "", "stop")]),
    "not within min_tokens": (
        *(END | {"min_tokens": 2}, [["a", "END", "b", "END", "b"]]),
        [(4, "aENDb", "stop")],
    ),
    "complete behind min_tokens": (
        *(END | {"min_tokens": 2}, [["a", "EN"], ["D"]]),
        [(2, "a", ""), (1, "", "stop")],
    ),
    "held for a longer one": (
        *({"stop": ["ab", "abX"], "min_tokens": 2}, [["a", "b"], ["c", "ab"]]),
        [(2, "", ""), (2, "abc", "stop")],
    ),
    "max_tokens within min_tokens": (
        *(END | {"min_tokens": 2, "max_tokens": 2}, [["a", "END"]]),
        [(2, "aEND", "length")],
    ),
    "shown, the shorter of two": (
        *({"stop": ["--", "-"], "includes_stop": True}, [["a-", "-b"]]),
        [(1, "a-", "stop")],
    ),
    "shown, across tokens": (
        *({"stop": ["--"], "includes_stop": True}, [["a-", "-b"]]),
        [(2, "a--", "stop")],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_where_a_text_ends_and_what_is_shown(name: str) -> None:
    terms, rounds, expected = ENDS[name]
    text = Text(**terms)
    found = [text.take(names) for names in rounds]
    assert [(one.num_tokens, one.text, one.finish_reason or "") for one in found] == expected
    num_tokens = sum(one.num_tokens for one in found)
    assert text.stops.num_tokens == num_tokens
    assert text.stops.remaining_tokens == terms.get("max_tokens", 100) - num_tokens


def test_until_eos_keeps_the_eos() -> None:
    stops = Text().stops
    assert stops.until_eos([1, 0, 2]) == [1, 0]
    assert stops.until_eos([1, 2]) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_rounds_of_any_size_give_the_same_end(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["a", "b", "ab", "ba", "aab"]
    tokens = [texts[rng.randrange(5)] for _ in range(60)]
    stop = ["".join(rng.choice("ab") for _ in range(6)), "bbbb"]
    whole = "".join(tokens)
    one_by_one, by_seven, at_once = (
        Text(stop=stop, max_tokens=len(tokens)).run(tokens, sizes)
        for sizes in ([1] * len(tokens), [7] * 10, [len(tokens)])
    )
    assert one_by_one == by_seven == at_once
    if not any(word in whole for word in stop):
        assert one_by_one[0] == whole
    else:
        # The end is where the first completed stop string begins.
        assert whole.startswith(one_by_one[0])
        assert any(whole.startswith(word, len(one_by_one[0])) for word in stop)


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 3, 2], [8]])
def test_min_tokens_ends_where_it_ends_whatever_the_rounds(sizes: list[int]) -> None:
    text = Text(stop=["ab"], min_tokens=4)
    assert text.run(["ab", "a", "b", "a", "b", "x", "x", "x"], sizes) == ("abab", 5)


@pytest.mark.parametrize(
    ("terms", "rounds", "shown", "offsets"),
    [
        (END, [["xE"], ["N"], ["y", "z"]], "xENyz", [(0,), (), (2, 3, 4)]),  # as soon as "x" is
        (END, [["a", "bE", "N", "Dz", "c"]], "ab", [(0, 1)]),  # what is cut has none
        ({}, [["a", ""], [""], ["€"]], "a€", [(0,), (), (1, 1, 1)]),  # the parts of a character
        (END | {"max_tokens": 3}, [["a", "~b"], ["E"]], "aEb", [(0,), (1, 1)]),  # the end shows all
        ({}, [["a", "", EOS]], "a", [(0, 1)]),  # but an eos
        ({"includes_stop": True}, [["a", EOS]], "a<eos>", [(0, 1)]),
    ],
)
def test_offsets_come_with_the_text_of_their_token(
    terms: dict[str, Any], rounds: list[list[str]], shown: str, offsets: list[tuple[int, ...]]
) -> None:
    text = Text(**terms)
    found = [text.take(names) for names in rounds]
    assert [one.offsets for one in found] == offsets
    assert "".join(one.text for one in found) == shown
