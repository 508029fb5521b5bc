"""What a target commits that drafts by its own heads has the target's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.side_paths import SidePaths
from models.engine.drafting.trees import DraftTrees, Shape
from models.protocol.messages import Verification
from models.scheduler.sessions import Job, Session
from tests.cases.distribution import CASES, exact_distribution, p_value
from tests.cases.models.eagle3 import early, write_eagle3
from tests.cases.models.medusa import NUM_HEADS, residuals, write_new
from tests.cases.models.mtp import repeating, write_mtp
from tests.cases.wrong_trees import take_any_leaf
from tests.harness.distribution_engines import (
    distribution_checkpoint,
    run_by_heads,
    run_sessions,
)

NUM_SESSIONS = 1500
_WIDTH = 32  # of the target


SHAPES: dict[str, Shape] = {
    "chain": [],
    "tree": [(-1, 0), (0, 0), (-1, 1), (1, 0), (0, 1), (-1, 2), (1, 1)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("medusa", name) for name in ("plain", "top-p", "penalties", "mask", "all")),
        *(("mtp", name) for name in ("plain", "all")),
        *(("eagle3", name) for name in ("plain", "all")),
    ],
)
def test_the_targets_distribution(
    kind: str,
    name: str,
    rule: Verification,
    shape: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: NUM_HEADS)
    monkeypatch.setattr(DraftTrees, "choose", lambda self, num_sessions, length: SHAPES[shape])
    target = distribution_checkpoint("target")
    if kind == "mtp":
        heads = write_mtp(tmp_path, repeating(target, scale=0.1))
    elif kind == "eagle3":
        heads = write_eagle3(
            tmp_path,
            target,
            early(target, scale=0.1),
            eagle_aux_hidden_state_layer_ids=[0, 0, 0],  # the target has no other layer
        )
    else:
        heads = write_new(tmp_path, residuals(_WIDTH))
    run = run_by_heads(CASES[name], rule, NUM_SESSIONS, heads)
    exact = exact_distribution(distribution_checkpoint("target"), CASES[name])
    assert p_value(run.texts, exact) > 1e-3
    assert any(run.first_stood), "no draft stood"
    assert not all(run.first_stood)
    if rule == "coupled":  # each text too
        assert run.texts[:300] == run_sessions(CASES[name], rule, 0, 300).texts


def test_a_token_of_a_tree_that_the_target_did_not_sample_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: NUM_HEADS)
    monkeypatch.setattr(DraftTrees, "choose", lambda self, num_sessions, length: SHAPES["tree"])
    heads = write_new(tmp_path, residuals(_WIDTH))
    num_beside, take = 0, SidePaths.take

    def noted(self: SidePaths, session: Session, job: Job, rows: Sequence[int]) -> None:
        nonlocal num_beside
        num_beside += rows[-1] != len(rows) - 1
        take(self, session, job, rows)

    monkeypatch.setattr(SidePaths, "take", noted)

    def p_of_trees() -> float:
        run = run_by_heads(CASES["plain"], "coupled", NUM_SESSIONS, heads)
        exact = exact_distribution(distribution_checkpoint("target"), CASES["plain"])
        return p_value(run.texts, exact)

    assert p_of_trees() > 1e-3
    assert num_beside > NUM_SESSIONS // 10, "hardly a side path was accepted"
    take_any_leaf(monkeypatch)
    assert p_of_trees() < 1e-6
