"""Experiments on drafters: somebody drafts where a way says so, and the aims on heads."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.experiments.drafting import HEADS, KINDS, KINDS_HEADS
from loadtest.frame.stages import Models


@pytest.mark.parametrize("experiment", [KINDS, KINDS_HEADS])
def test_repeats_draft_for_a_model_without_a_draft_model(experiment: Any, tmp_path: Any) -> None:
    models = Models(label="real", target=tmp_path, drafts={}, router=experiment.router)
    for way in experiment.ways.values():
        assert models.speculation(way)["suffix_decoding_max_tree_depth"] > 0


def rows(**rates: float) -> list[dict[str, Any]]:
    return [
        {
            **{"stage": "http", "workload": "writing", "batch": 1},
            **{"way": way.replace("_", " "), "runs": {"tokens_per_s": [rate, rate]}},
        }
        for way, rate in rates.items()
    ]


def judged(experiment: Any, found: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    claims = [claim for goal in experiment.goals for claim in goal.claims(found)]
    return [(claim.value, claim.goal) for claim in claims]


def test_heads_must_gain_where_suffix_decoding_gains_little() -> None:
    little = rows(plain=10.0, suffix_alone=11.0, heads_alone=14.0, both=15.4)
    assert judged(KINDS_HEADS, little) == [(1.4, 1.5), (pytest.approx(1.1), 1.0)]
    much = rows(plain=10.0, suffix_alone=20.0, heads_alone=14.0, both=22.0)
    assert judged(KINDS_HEADS, much) == [(pytest.approx(1.1), 1.0)]


def test_the_first_heads_of_the_demo_have_aims_by_kind_and_lose_nothing_to_many() -> None:
    found = [
        {**row, "workload": kind, "batch": batch}
        for kind in ("story", "extraction", "code")
        for batch in (1, 8)
        for row in rows(plain=10.0, mtp=20.0, medusa=12.0)
    ]
    assert judged(HEADS, found) == [(2.0, 1.4), (2.0, 1.8), (2.0, 1.8), *[(2.0, 0.97)] * 3]
