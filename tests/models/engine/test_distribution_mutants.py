"""Rejection with one thing broken on purpose: the distribution tests must see each.

A draft and its judgement use four streams of noise. Which of them may be shared without harm is a
question of the protocol (no position is both judged and drawn plainly); those that may not are
tried here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from models.engine import sampler
from models.protocol.messages import Sampling
from models.sampling import draft_probs, verification
from models.sampling.noise import DOMAIN_DRAFT, DOMAIN_TEST, DOMAIN_TOKEN
from models.sampling.penalties import TokenHistory
from tests.cases.distribution import CASES, Case
from tests.harness.distribution_engines import run_sessions
from tests.models.engine.test_distribution import p_of_run

Patch = pytest.MonkeyPatch
NUM_SESSIONS = 2000


def residual_is_the_target(patch: Patch) -> None:
    patch.setattr(verification, "_residual", lambda target_probs, draft_rows: target_probs)


def inverted_test(patch: Patch) -> None:
    patch.setattr(verification, "_is_accepted", lambda p, q, noise: noise * p < q)


def skipped_test(patch: Patch) -> None:
    patch.setattr(verification, "_is_accepted", lambda p, q, noise: True)


def draft_and_its_test_in_the_tokens_domain(patch: Patch) -> None:
    patch.setattr(verification, "DOMAIN_TEST", DOMAIN_TOKEN)
    patch.setattr(draft_probs, "DOMAIN_DRAFT", DOMAIN_TOKEN)


def draft_and_its_test_in_the_drafts_domain(patch: Patch) -> None:
    patch.setattr(verification, "DOMAIN_TEST", DOMAIN_DRAFT)


def residual_in_the_drafts_domain(patch: Patch) -> None:
    patch.setattr(verification, "DOMAIN_RESIDUAL", DOMAIN_DRAFT)


def residual_in_the_tests_domain(patch: Patch) -> None:
    patch.setattr(verification, "DOMAIN_RESIDUAL", DOMAIN_TEST)


def draft_is_not_renormalised(patch: Patch) -> None:
    def kept_mass(scores: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, dim=1).gather(1, token_ids)

    patch.setattr(draft_probs, "_renormalised", kept_mass)
    patch.setattr(draft_probs, "_SUM_TOLERANCE", 1.0)


def draft_is_sent_of_another_row(patch: Patch) -> None:
    pack = draft_probs.pack
    patch.setattr("models.engine.draft.pack", lambda rows: pack(rows[:1] * len(rows)))
    patch.setattr(draft_probs.DraftRow, "prob_of", lambda row, token_id: 0.3)


def penalties_miss_the_draft(patch: Patch) -> None:
    rows = TokenHistory.rows
    patch.setattr(
        TokenHistory, "rows", lambda history, start, ids, n: rows(history, start, ids, 1) * n
    )


def rules_miss_the_draft(patch: Patch) -> None:
    rows = sampler._forbidden
    patch.setattr(sampler, "_forbidden", lambda part: rows(part)[:1] * part.num_rows)


def rules_see_the_draft_too_early(patch: Patch) -> None:
    ids = sampler.forbidden_ids
    patch.setattr(
        sampler,
        "forbidden_ids",
        lambda sampling, eos_ids, generated: ids(sampling, eos_ids, [*generated, 0]),
    )


def illegal_draft_is_dropped_before_its_test(patch: Patch) -> None:
    patch.setattr(verification, "_num_tests", lambda j: min(j.num_rows - 1, len(j.draft)))


# The noise of a test touches token 0 only, that of a residual what was not drafted: where sharing
# shows best was searched for over prompts.
PLAIN = CASES["plain"]
LIKELY_ZERO = replace(PLAIN, prompt=(7, 8, 9, 2))
TWO_TOKENS = replace(PLAIN, sampling=Sampling(top_k=2), prompt=(1, 2, 3, 3))

MUTANTS: list[tuple[Callable[[Patch], None], Case, int]] = [
    (residual_is_the_target, PLAIN, 1),
    (inverted_test, PLAIN, 1),
    (skipped_test, PLAIN, 1),
    (draft_and_its_test_in_the_tokens_domain, LIKELY_ZERO, 1),
    (draft_and_its_test_in_the_drafts_domain, LIKELY_ZERO, 1),
    (residual_in_the_drafts_domain, TWO_TOKENS, 1),
    (residual_in_the_tests_domain, PLAIN, 1),
    (draft_is_not_renormalised, CASES["truncated-draft"], 1),
    (draft_is_sent_of_another_row, PLAIN, 3),
    (penalties_miss_the_draft, CASES["penalties"], 3),
    (rules_miss_the_draft, CASES["bad-words"], 3),
    (rules_miss_the_draft, CASES["min-tokens"], 3),
    (rules_see_the_draft_too_early, CASES["min-tokens"], 1),
    (illegal_draft_is_dropped_before_its_test, CASES["mask-on-target-only"], 3),
]


def p_of(case: Case, k: int, **options: bool) -> float:
    return p_of_run(run_sessions(case, "rejection", k, NUM_SESSIONS, **options), case)


@pytest.mark.parametrize(
    ("mutant", "case", "k"), [pytest.param(*row, id=row[0].__name__) for row in MUTANTS]
)
def test_a_mutant_is_seen(
    mutant: Callable[[Patch], None], case: Case, k: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(draft_probs, "NUM_PAIRS", case.num_pairs)
    mutant(monkeypatch)
    assert p_of(case, k) < 1e-6


def test_a_target_without_masks_is_seen() -> None:
    assert p_of(CASES["mask"], 1, is_target_masked=False) < 1e-6


@pytest.mark.parametrize("case", [LIKELY_ZERO, TWO_TOKENS], ids=["likely-zero", "two-tokens"])
def test_nothing_is_seen_where_nothing_is_broken(case: Case) -> None:
    assert p_of(case, 1) > 1e-3
