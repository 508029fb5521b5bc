from __future__ import annotations

import itertools

import pytest

from models.messages import DraftSource
from router.acceptance import AcceptanceEstimate, AcceptancePool
from router.draft_length import (
    AdaptiveLength,
    FixedLength,
    PassCosts,
    RoundPlan,
    RoundPlanner,
)


def costs(base_ms: float, row_ms: float, step_ms: float, link_ms: float = 0.0) -> PassCosts:
    measured = PassCosts()
    for repeat in range(100):
        rows = 1 + repeat % 6
        measured.observe_pass(rows, rows, base_ms + row_ms * rows)
        measured.observe_draft("draft_model", step_ms, link_ms)
    return measured


def policy(
    measured: PassCosts,
    alpha: float,
    max_length: int = 8,
    rounds: int = 300,
    source: DraftSource = "draft_model",
) -> AdaptiveLength:
    estimate = AcceptanceEstimate(AcceptancePool("free", source))
    for repeat in range(rounds):
        # Deterministic runs with hazard alpha: an error every 1 / (1 - alpha) tokens.
        period = round(1 / (1 - alpha))
        estimate.observe(8, (repeat * 7) % period if period <= 8 else 8)
    return AdaptiveLength(estimate, measured, max_length, source)


def test_costs_recover_the_line_they_were_fed() -> None:
    measured = costs(20.0, 0.25, 2.0, link_ms=0.5)
    assert measured.pass_ms(1) == pytest.approx(20.25, abs=0.01)
    assert measured.pass_ms(6) == pytest.approx(21.5, abs=0.01)
    assert measured.draft_ms("draft_model", 4) == pytest.approx(8.5, abs=0.01)


def test_pass_time_never_falls_with_rows() -> None:
    measured = PassCosts()
    for rows, elapsed_ms in [(1, 10.0), (4, 8.0), (8, 6.0)] * 10:
        measured.observe_pass(rows, rows, elapsed_ms)
    assert measured.pass_ms(8) >= measured.pass_ms(1)


def test_rows_of_others_are_part_of_the_pass() -> None:
    measured = PassCosts()
    for repeat in range(200):
        rows = 8 + repeat % 4
        measured.observe_pass(rows, 1, 10.0 + rows)
    assert measured.pass_ms(1) == pytest.approx(10.0 + 9.5, abs=0.6)


def test_cheap_drafts_and_high_acceptance_draft_long() -> None:
    assert policy(costs(20.0, 0.25, 0.5), 0.9).plan(8).num_draft_tokens >= 5


def test_low_acceptance_drafts_short() -> None:
    assert 0 < policy(costs(20.0, 0.25, 2.0), 0.5).plan(8).num_draft_tokens <= 3


def test_dear_rows_stop_speculation() -> None:
    plan = policy(costs(1.0, 10.0, 5.0), 0.5).plan(8)
    assert plan.num_draft_tokens == 0
    assert plan.run_on > 0


def test_the_estimate_matches_an_exhaustive_search() -> None:
    measured = costs(20.0, 1.0, 2.0, link_ms=1.0)
    adaptive = policy(measured, 0.8)
    survival = adaptive._estimate.survival(8)
    rates = [
        (1.0 + sum(survival[:k]))
        / (measured.pass_ms(1 + k) + (measured.draft_ms("draft_model", k) if k else 0.0))
        for k in range(9)
    ]
    assert adaptive.plan(8).num_draft_tokens == max(range(9), key=rates.__getitem__)


def test_while_plain_is_best_it_probes_ever_more_rarely() -> None:
    adaptive = policy(costs(1.0, 10.0, 5.0), 0.5)
    lengths = [adaptive.plan(8).num_draft_tokens for _ in range(100)]
    probes = [index for index, length in enumerate(lengths) if length]
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert len(probes) >= 3
    assert gaps == sorted(gaps)
    assert gaps[-1] > gaps[0]


def test_it_recovers_when_acceptance_does() -> None:
    adaptive = policy(costs(20.0, 1.0, 6.0), 0.5, rounds=50)
    for _ in range(50):
        adaptive.observe(2, 0)
    assert adaptive.plan(8).num_draft_tokens == 0
    for _ in range(600):
        drafted = adaptive.plan(8).num_draft_tokens
        adaptive.observe(drafted, drafted)
    assert adaptive.plan(8).num_draft_tokens >= 4


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limits_are_kept(limit: int) -> None:
    assert policy(costs(20.0, 0.1, 0.1), 0.9).plan(limit).num_draft_tokens <= limit


def test_without_measurements_it_drafts_while_a_token_is_likely_to_stand() -> None:
    estimate = AcceptanceEstimate(AcceptancePool("structured"))
    assert AdaptiveLength(estimate, PassCosts(), 8).plan(8).num_draft_tokens >= 3


@pytest.mark.parametrize(
    ("wanted", "allowed", "plan"),
    [(3, 8, RoundPlan(3, 0)), (3, 2, RoundPlan(2, 0)), (3, 0, RoundPlan(0, 1))],
    ids=["full", "clipped", "no draft"],
)
def test_fixed_length(wanted: int, allowed: int, plan: RoundPlan) -> None:
    assert FixedLength(wanted).plan(allowed) == plan


def test_where_nobody_drafts_the_target_goes_on_alone() -> None:
    assert RoundPlanner({}, 32).plan(None, 0) == RoundPlan(0, 32)


def test_misses_in_a_row_let_the_target_go_on_ever_further() -> None:
    planner = RoundPlanner({"ngram": FixedLength(4)}, 32)
    assert [planner.after_miss().run_on for _ in range(6)] == [1, 1, 2, 2, 3, 3]
    assert max(planner.after_miss().run_on for _ in range(50)) == 8
    planner.observe("ngram", 4, 0)
    assert planner.after_miss().run_on == 1


def test_a_free_draft_is_longer_than_one_that_costs_steps() -> None:
    measured = costs(20.0, 0.5, 8.0, link_ms=1.0)
    lengths = {
        source: policy(measured, 0.7, source=source).plan(8).num_draft_tokens
        for source in ("draft_model", "ngram")
    }
    assert lengths["ngram"] > lengths["draft_model"]
    assert measured.draft_ms("ngram", 8) == 0.0


def test_prompt_lookup_needs_no_measured_step_and_changes_none() -> None:
    measured = PassCosts()
    measured.observe_pass(1, 1, 20.0)
    measured.observe_draft("ngram", 3.0, 4.0)
    assert measured.is_known("ngram")
    assert not measured.is_known("draft_model")
    assert measured.draft_ms("draft_model", 5) == 0.0


def test_a_dear_link_stops_drafts_that_seldom_stand() -> None:
    """A plain round pays the link to the target once in several tokens, a drafted one each time."""
    measured = costs(7.0, 0.05, 0.0)
    assert policy(measured, 0.5, source="ngram").plan(8).num_draft_tokens > 0
    for _ in range(100):
        measured.observe_verify_link(6.0)
    assert policy(measured, 0.5, source="ngram").plan(8).num_draft_tokens == 0
    assert policy(measured, 0.9, source="ngram").plan(8).num_draft_tokens > 0
