"""What a target commits that drafts by its own heads has the target's distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.trees import DraftTrees, Shape
from models.protocol.messages import Verification
from tests.cases.distribution import CASES, exact_distribution, p_value
from tests.cases.models.eagle3 import early, write_eagle3
from tests.cases.models.medusa import NUM_HEADS, residuals, write_new
from tests.cases.models.mtp import repeating, write_mtp
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
