"""What drafts are judged by, against draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models.distill.losses import acceptance_of, coupled
from models.distill.teacher import Teacher

NUM_DRAWS = 20_000


@pytest.mark.parametrize("num_drafted", [6, 4], ids=["all", "some"])
def test_acceptance_is_what_draws_with_shared_noise_find(num_drafted: int) -> None:
    """Some: the drafter never says the last two ids, which the target may."""
    generator = torch.Generator().manual_seed(num_drafted)
    theirs, own = torch.randn(2, 6, generator=generator)
    own[num_drafted:] = -torch.inf
    noise = -torch.empty(NUM_DRAWS, 6).exponential_(generator=generator).log()
    same = ((theirs + noise).argmax(1) == (own + noise).argmax(1)).float().mean()
    log_probs = theirs.log_softmax(0)[None, :num_drafted]
    found = acceptance_of(own[None, :num_drafted], log_probs)
    assert found.coupled == pytest.approx(float(same), abs=4 * 0.5 * NUM_DRAWS**-0.5)
    overlap = torch.minimum(theirs.softmax(0), own.softmax(0)).sum()
    assert found.rejection == pytest.approx(float(overlap), abs=1e-5)
    assert found.coupled < found.rejection


def test_greedy_counts_only_what_is_certainly_the_targets_choice() -> None:
    logits = torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    law = torch.tensor([[0.6, 0.1], [0.3, 0.1], [0.6, 0.1]])  # the rest is of other ids
    assert acceptance_of(logits, law.log()).greedy == pytest.approx(1 / 3)


def test_equal_distributions_are_always_accepted_and_disjoint_ones_never() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    assert acceptance_of(logits, logits.log_softmax(-1)) == pytest.approx((1, 1, 1), abs=1e-5)
    assert float(coupled(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))) == 0.0


def test_a_target_whose_logits_are_capped_is_refused() -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(final_logit_softcapping=30.0))
    with pytest.raises(ValueError, match=r"a target with final_logit_softcapping, got 30\.0"):
        Teacher(model)
