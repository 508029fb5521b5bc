from __future__ import annotations

import itertools
import random

import pytest

from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.ngram import NGRAM
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool

PRIOR = DRAFT_MODEL.traits.prior_acceptance


def feed(estimate: AcceptanceEstimate, alpha: float, k: int, rounds: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        estimate.observe(k, accepted)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_censored_rounds_do_not_bias_the_first_position(alpha: float, k: int) -> None:
    estimate = AcceptanceEstimate(AcceptancePool(PRIOR["free"]))
    values = []
    for batch in range(40):
        feed(estimate, alpha, k, 20, seed=batch)
        values.append(estimate.survival(1)[0])
    mean = sum(values[5:]) / len(values[5:])
    assert mean == pytest.approx(alpha, abs=0.05)


def test_survival_never_rises() -> None:
    estimate = AcceptanceEstimate(AcceptancePool(PRIOR["free"]))
    feed(estimate, 0.7, 6, 50)
    survival = estimate.survival(8)
    assert all(later <= earlier for earlier, later in itertools.pairwise(survival))


def test_positions_behind_the_first_rejection_are_not_counted() -> None:
    pool = AcceptancePool(PRIOR["free"])
    AcceptanceEstimate(pool).observe(4, 0)
    assert pool.acceptances()[0] < PRIOR["free"]
    assert pool.acceptances()[1] == pool.acceptances()[0], "nothing is known of it alone"


def test_where_short_drafts_begin_to_stand_longer_ones_look_worth_it() -> None:
    """Only first tokens are seen since: what was known of the others is of long ago."""
    pool = AcceptancePool(PRIOR["free"])
    estimate = AcceptanceEstimate(pool)
    feed(estimate, 0.2, 4, 400)
    assert estimate.survival(3)[2] < 0.1
    feed(estimate, 1.0, 1, 800)
    assert estimate.survival(3)[2] > 0.8


def test_a_new_session_starts_from_its_pool() -> None:
    pool = AcceptancePool(PRIOR["free"])
    feed(AcceptanceEstimate(pool), 0.95, 4, 200)
    assert AcceptanceEstimate(pool).survival(1)[0] > 0.88


def test_a_session_outweighs_its_pool_in_time() -> None:
    pool = AcceptancePool(PRIOR["structured"])
    feed(AcceptanceEstimate(pool), 0.95, 4, 200)
    contrary = AcceptanceEstimate(pool)
    feed(contrary, 0.1, 4, 60)
    assert contrary.survival(1)[0] < 0.35


def test_a_round_without_a_draft_says_nothing() -> None:
    pool = AcceptancePool(PRIOR["free"])
    estimate = AcceptanceEstimate(pool)
    estimate.observe(0, 0)
    assert estimate.survival(1)[0] == pytest.approx(PRIOR["free"])


def test_each_source_of_drafts_has_a_pool_of_its_own() -> None:
    model, lookup = (
        AcceptancePool(PRIOR["free"]),
        AcceptancePool(NGRAM.traits.prior_acceptance["free"]),
    )
    before = model.acceptances()[0]
    feed(AcceptanceEstimate(lookup), 0.05, 4, 200)
    assert model.acceptances()[0] == before
    assert lookup.acceptances()[0] < 0.15


def test_passes_without_a_draft_are_counted_apart_from_what_became_of_drafts() -> None:
    pool = AcceptancePool(NGRAM.traits.prior_acceptance["free"])
    estimate = AcceptanceEstimate(pool)
    assert estimate.presence == 1.0
    before = estimate.survival(3)
    for _ in range(100):
        estimate.observe_presence(0)  # it had a draft
        estimate.observe_presence(3)  # the target went on alone for three passes
    assert estimate.survival(3) == before
    assert estimate.presence == pytest.approx(0.25, abs=0.08)
    newcomer = AcceptanceEstimate(pool)
    assert newcomer.presence == pytest.approx(pool.presence)
    assert 0.2 < newcomer.presence < 0.5
