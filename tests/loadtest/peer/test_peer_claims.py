"""Claims of a comparison: which lines are compared, on which turns, with which interval."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.peer.claims import peer_claims
from loadtest.peer.timed import Key, PeerLine, Timed


def answer(decode_ms: float, num_tokens: int = 11) -> Timed:
    decode_s = decode_ms * (num_tokens - 1) / 1e3
    return Timed(
        num_tokens=num_tokens, num_decoded=num_tokens - 1, decode_s=decode_s, whole_s=2 * decode_s
    )


def line(
    side: str, way: str, runs: Sequence[Sequence[float]], *, task: str = "json", threads: int = 1
) -> PeerLine:
    key = Key("engine", threads, task, side, way)
    return PeerLine(key, [[answer(value) for value in run] for run in runs])


def test_plain_decoding_is_compared_over_all_tasks() -> None:
    lines = [
        line("ours", "plain", [[10.0], [20.0]]),
        line("llama.cpp", "plain", [[10.0], [10.0]]),
        line("ours", "plain", [[10.0], [20.0]], task="stories"),
        line("llama.cpp", "plain", [[10.0], [10.0]], task="stories"),
    ]
    [found] = peer_claims(lines)
    assert found.claim.value == pytest.approx(2.0**0.5)
    assert (found.claim.relation, found.claim.goal, found.claim.is_met) == ("at most", 1.15, False)
    assert found.low == pytest.approx(1.0)
    assert found.high == pytest.approx(2.0)
    assert "in one process, 1 thread: time per token without drafts" in found.claim.text


def test_the_best_is_picked_on_one_half_and_compared_on_the_other() -> None:
    lines = [
        line("ours", "k=3", [[5.0], [9.0], [5.0], [9.0]]),  # the best of turns 1 and 3
        line("ours", "k=5", [[6.0], [6.0], [6.0], [6.0]]),
        line("llama.cpp", "ngram-simple 3/8", [[8.0], [18.0], [8.0], [18.0]]),
    ]
    [found] = peer_claims(lines)
    assert "ours k=3 / llama.cpp ngram-simple 3/8" in found.claim.text
    assert found.claim.value == pytest.approx(2.0)
    assert (found.claim.goal, found.claim.is_met) == (1.0, True)
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


def test_a_single_turn_picks_and_compares() -> None:
    [found] = peer_claims(
        [line("ours", "k=5", [[4.0, 4.0]]), line("llama.cpp", "ngram-mod 4", [[2.0, 8.0]])]
    )
    assert found.claim.value == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((0.5, 2.0))


def test_drafts_of_a_model_have_their_goal_and_assistants_theirs() -> None:
    ours = line("ours", "k=5", [[10.0]], task="stories")
    theirs = line("llama.cpp", "draft k=3", [[13.0]], task="stories")
    assisted = line("transformers", "assisted k=5", [[31.0]], task="stories")
    draft, transformers = peer_claims([ours, theirs, assisted])
    assert (draft.claim.value, draft.claim.goal) == pytest.approx((1.3, 1.4))
    assert not draft.claim.is_met
    assert (transformers.claim.value, transformers.claim.goal) == pytest.approx((3.1, 3.0))
    assert "whole answers" in transformers.claim.text


def test_without_the_other_side_there_is_no_claim() -> None:
    assert peer_claims([line("ours", "plain", [[1.0]]), line("ours", "k=5", [[1.0]])]) == []


def test_threads_are_not_mixed_and_stories_have_no_goal_for_lookups() -> None:
    lines = [
        line("ours", "plain", [[1.0]], threads=1),
        line("llama.cpp", "plain", [[1.0]], threads=2),
        line("ours", "k=5", [[1.0]], task="stories"),
        line("llama.cpp", "ngram-mod 4", [[1.0]], task="stories"),
    ]
    assert peer_claims(lines) == []
