"""What counts as a lost group. How processes are started and ended: tests/integration."""

from __future__ import annotations

import pytest

from deployments.config import ModelConfig
from deployments.engine_loop import LoopStats
from deployments.rank_group import stall_complaint

MODEL = ModelConfig(model_path="x", stall_timeout_s=10.0, step_timeout_s=120.0)


def stats(*, step_age_s: float | None) -> LoopStats:
    return LoopStats(
        num_ticks=7,
        num_steps=3,
        num_sessions=1,
        num_used_blocks=1,
        is_stepping=step_age_s is not None,
        step_age_s=step_age_s or 0.0,
    )


@pytest.mark.parametrize(
    ("step_age_s", "still_s", "complaint"),
    [
        (None, 9.0, ""),
        (None, 11.0, "no turn of the engine loop for 11.0 s"),
        (110.0, 110.0, ""),
        (121.0, 121.0, "one pass takes 121.0 s"),
    ],
    ids=["idle", "stands_still", "long_prefill", "hangs"],
)
def test_a_long_pass_is_no_stall_until_its_own_limit(
    step_age_s: float | None, still_s: float, complaint: str
) -> None:
    found = stall_complaint(MODEL, stats(step_age_s=step_age_s), still_s)
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)
