"""Entries of logprobs go out with the text of their tokens, each once, or the request fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from models.protocol.errors import InternalError
from models.protocol.messages import TokenLogprobs, Verdict
from models.protocol.packed_logprobs import pack, unpack
from router.logprobs import LogprobsOutbox
from router.stops import StopChecker
from tests.fakes.router import LetterDetokenizer
from tests.router import replies


def entries(tokens: Sequence[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -1.0, 1, ()) for token in tokens]


def verdict(tokens: Sequence[int], of_prompt: Sequence[int] = ()) -> Verdict:
    return replies.verdict(
        len(tokens) - 1,
        tokens[-1],
        logprobs=entries(tokens),
        prompt_logprobs=[pack(entry) for entry in entries(of_prompt)],
    )


def test_entries_wait_for_their_text() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[0], stop=["cde"], max_tokens=9)
    outbox = LogprobsOutbox(3, is_asked=True)
    told = []
    for tokens in ([1, 2], [3, 5], [6, 0]):
        taken = stops.take(tokens)
        shown = outbox.shown([verdict(tokens)], len(tokens), taken)
        told.append((taken.text, [(token.offset, token.logprobs.token) for token in shown]))
    assert told == [
        ("b", [(0, 1)]),
        ("cdf", [(1, 2), (2, 3), (3, 5)]),
        ("g", [(4, 6)]),
    ]


def test_entries_of_verdicts_that_go_out_together_wait_for_their_text_too() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[0], stop=["de"], max_tokens=9)
    outbox = LogprobsOutbox(is_asked=True)
    told = []
    for rounds in ([[1], [2, 3]], [[5], [6], [7, 4]]):  # the first ends with "d"
        tokens = [token for one in rounds for token in one]
        taken = stops.take(tokens)
        shown = outbox.shown([verdict(one) for one in rounds], len(tokens), taken)
        told.append((taken.text, [token.logprobs.token for token in shown]))
    assert told == [("bc", [1, 2]), ("dfghe", [3, 5, 6, 7, 4])]


def test_what_a_stop_string_cuts_is_not_told() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[0], stop=["cd"], max_tokens=9)
    tokens = [1, 2, 3, 4]
    shown = LogprobsOutbox(is_asked=True).shown([verdict(tokens)], len(tokens), stops.take(tokens))
    assert [token.logprobs.token for token in shown] == [1]


def test_nothing_is_told_where_nothing_was_asked() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[], stop=[], max_tokens=9)
    outbox = LogprobsOutbox(3)
    assert outbox.shown([verdict([1])], 1, stops.take([1])) == ()
    assert outbox.of_prompt(verdict([1], [7, 8])) is None


def test_the_prompts_come_once() -> None:
    outbox = LogprobsOutbox(3, is_asked_for_prompt=True)
    told = outbox.of_prompt(verdict([1], [7, 8]))
    assert told is not None
    assert [unpack(entry) for entry in told] == entries([7, 8])
    assert outbox.of_prompt(verdict([1], [7, 8])) is None
    assert LogprobsOutbox(1, is_asked_for_prompt=True).of_prompt(verdict([1])) == ()


def test_missing_entries_are_a_fault() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[], stop=[], max_tokens=9)
    with pytest.raises(InternalError, match="1 logprobs, 2 were due"):
        LogprobsOutbox(is_asked=True).shown([verdict([1])], 2, stops.take([1, 2]))
    with pytest.raises(InternalError, match="0 prompt_logprobs, 2 were due"):
        LogprobsOutbox(3, is_asked_for_prompt=True).of_prompt(verdict([1]))
