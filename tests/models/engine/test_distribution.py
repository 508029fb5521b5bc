"""What real engines commit has the target's distribution, under both rules; how much they accept.

Each test samples 1,500 short texts, every one with its own seed, and compares the joint
distribution of the first three generated tokens with the target's exact one. Seeds are fixed, so a
result is always the same. That these tests see mistakes is shown in `test_distribution_mutants.py`.
"""

from functools import cache

import numpy as np
import pytest

from models.protocol.messages import Verification
from models.sampling import draft_probs
from tests.cases.distribution import (
    CASES,
    Case,
    coupled_acceptance,
    exact_distribution,
    first_probs,
    p_value,
    rejection_acceptance,
    truncated,
)
from tests.harness.distribution_engines import Run, distribution_checkpoint, run_sessions

NUM_SESSIONS = 1500
MODEL_CASES = [name for name, case in CASES.items() if not case.is_certain]


@cache
def run_of(name: str, rule: Verification, k: int) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_probs, "NUM_PAIRS", CASES[name].num_pairs)
        return run_sessions(CASES[name], rule, k, NUM_SESSIONS)


def p_of_run(run: Run, case: Case) -> float:
    return p_value(run.texts, exact_distribution(distribution_checkpoint("target"), case))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_rejection_follows_the_target(name: str, k: int) -> None:
    assert p_of_run(run_of(name, "rejection", k), CASES[name]) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_coupled_follows_the_target(name: str) -> None:
    run = run_of(name, "coupled", 3)
    assert p_of_run(run, CASES[name]) > 1e-3
    # Not only the distribution: each text is the same for every k.
    assert run_sessions(CASES[name], "coupled", 1, 300).texts == run.texts[:300]


@pytest.mark.parametrize("name", ["plain", "penalties", "mask"])
def test_without_drafts_both_rules_give_the_same_texts(name: str) -> None:
    texts = run_sessions(CASES[name], "rejection", 0, 300).texts
    assert texts == run_of(name, "coupled", 3).texts[:300]


@pytest.mark.parametrize("name", MODEL_CASES)
def test_as_many_are_accepted_as_each_rule_says(name: str) -> None:
    """Rejection accepts the common part, and coupling what its formula gives."""
    case = CASES[name]
    target, draft = first_probs(
        distribution_checkpoint("target"), distribution_checkpoint("draft"), case
    )
    common = rejection_acceptance(target, truncated(draft, case.num_pairs))
    assert_share(run_of(name, "rejection", 1).first_stood, common)
    assert_share(run_of(name, "coupled", 3).first_stood, coupled_acceptance(target, draft))


def assert_share(stood: list[bool], expected: float) -> None:
    """The share of draft tokens that stood is within three standard deviations."""
    sigma = np.sqrt(expected * (1 - expected) / len(stood))
    assert abs(np.mean(stood) - expected) < 3 * sigma
