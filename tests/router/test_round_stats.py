"""What a session's counts say of drafts of several lengths, and of none."""

from __future__ import annotations

from router.stats import DraftReplay, RoundStats, SpeculationStats


def test_without_a_draft_there_is_one_empty_entry() -> None:
    stats = RoundStats().snapshot()
    assert stats.acceptance_histogram == (0,)
    assert stats.num_spec_tokens == 0
    assert stats.mean_acceptance_length == 1.0


def test_the_longest_draft_ends_the_histogram() -> None:
    rounds = RoundStats()
    rounds.add_acceptance([("draft_model", 4)], 1)
    rounds.add_acceptance([("ngram", 2)], 2)
    stats = rounds.snapshot()
    assert stats.num_spec_tokens == 4
    assert stats.acceptance_histogram == (0, 1, 1, 0, 0)
    assert stats.num_draft_tokens == 6


def test_replays_of_several_answers_are_joined_and_no_round_is_of_two() -> None:
    answers = [(True, True), (True, False, True), (False,)]
    stats = [SpeculationStats(replays={"small": DraftReplay(each)}) for each in answers]
    [joined] = sum(stats, SpeculationStats()).replays.values()
    assert joined.matches == tuple(match for each in answers for match in each)
    for length in (1, 2, 5):
        apart = [one for each in answers for one in DraftReplay(each).accepted(length)]
        assert joined.accepted(length) == apart


def test_each_segment_of_a_draft_is_counted_by_name() -> None:
    rounds = RoundStats()
    rounds.add_acceptance([("front", 2), ("draft_model", 3), ("suffix", 4)], 6)
    rounds.add_acceptance([("front", 2), ("draft_model", 3)], 1)
    stats = rounds.snapshot()
    assert stats.num_drafted_by == {"front": 4, "draft_model": 6, "suffix": 4}
    assert stats.num_accepted_by == {"front": 3, "draft_model": 3, "suffix": 1}
    assert stats.per_step_drafted == (9, 5)
    assert stats.per_step_accepted == (6, 1)
