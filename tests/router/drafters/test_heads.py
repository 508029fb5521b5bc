"""Heads by name: who may be asked for, and what a session then asks of its target."""

from __future__ import annotations

import pytest

from models.heads.config import TargetHeads
from models.protocol.errors import InvalidRequest
from router.drafters.choice import choose_drafters
from router.drafters.draft_model import POOL
from router.drafters.heads import own_length
from router.limits import SpeculationLimits
from router.types import SpeculationSettings

MEDUSA, MTP = TargetHeads("medusa", 4), TargetHeads("mtp")
ALLOWED = SpeculationLimits()


def asked(**fields: object) -> SpeculationSettings:
    return SpeculationSettings(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mtp", "heads"])
def test_where_heads_are_named_nobody_else_drafts(name: str) -> None:
    assert choose_drafters(asked(drafter=name), ALLOWED, [POOL], heads=MTP) == ()
    assert choose_drafters(asked(), ALLOWED, [POOL], heads=MTP) != ()


@pytest.mark.parametrize(
    ("name", "heads", "pools", "served"),
    [
        ("medusa", MTP, (), "suffix, ngram, mtp, heads here"),
        ("mtp", MEDUSA, (POOL,), "draft_model, suffix, ngram, medusa, heads here"),
        ("early_exit", None, (), "suffix, ngram here"),
        ("heads", None, (), "suffix, ngram here"),
        ("hydra", None, (POOL,), "draft_model, suffix, ngram"),  # nobody knows these two
        ("x", MTP, (), "draft_model, suffix, ngram, mtp"),
    ],
)
def test_others_are_refused_with_what_is_served(
    name: str, heads: TargetHeads | None, pools: tuple[str, ...], served: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        choose_drafters(asked(drafter=name), ALLOWED, pools, heads=heads)
    assert refused.value.message == f"speculation.drafter: must be one of {served}, got {name!r}"
    assert refused.value.param == "speculation.drafter"


def test_no_more_tokens_than_there_are_heads() -> None:
    wanted = asked(drafter="medusa", num_speculative_tokens=5)
    with pytest.raises(InvalidRequest, match="at most 4 with drafter medusa") as refused:
        choose_drafters(wanted, ALLOWED, (), heads=MEDUSA)
    assert refused.value.param == "speculation.k"
    wanted = asked(drafter="medusa", num_speculative_tokens=4)
    assert choose_drafters(wanted, ALLOWED, (), heads=MEDUSA) == ()


@pytest.mark.parametrize(
    ("wanted", "fixed", "length"),
    [
        (asked(), None, 0),
        (asked(), 3, None),
        (asked(drafter="suffix"), None, None),
        (asked(drafter="mtp"), None, 0),
        (asked(drafter="mtp"), 3, 3),
        (asked(drafter="heads"), 3, 3),
        (asked(drafter="mtp"), 0, None),
        (asked(drafter="mtp", enabled=False), 3, None),
    ],
)
def test_what_a_target_is_asked_for(
    wanted: SpeculationSettings, fixed: int | None, length: int | None
) -> None:
    assert own_length(wanted, ALLOWED, fixed) == length
    assert own_length(wanted, SpeculationLimits(enabled=False), fixed) is None
