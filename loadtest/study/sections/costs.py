"""Measures the cost of a draft step and of a longer pass, in passes of the target.

c is a draft step of one row over a target pass of one row. Growth is a target pass of k + 1 rows
over one of one row. Theory takes it to be 1. Passes run by turns; ratios are of one turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from loadtest.bench.passes import PassShape, tables_for, timed_pass
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.study.world import World
from models.engine.runner import ModelRunner

_CONTEXT = 128  # tokens of each session before its rows
_DRAFT = "draft"


def measure(world: World, draft: str, batch: int) -> dict[str, Any]:
    """Measure `batch` sessions at a time.

    Prompt lookup has no step, so its c is 0.
    """
    settings, engines = world.settings, world.engines
    target, drafter = engines.target, engines.drafts.get(draft)
    shapes = [PassShape(batch, rows, _CONTEXT) for rows in (1, *(k + 1 for k in settings.k))]
    shapes = [shape for shape in shapes if shape.num_rows <= target.max_num_batched_tokens]
    tables = tables_for(target, shapes)
    step = PassShape(batch, 1, _CONTEXT)
    step_tables = [] if drafter is None else tables_for(drafter, [step])
    lines: dict[str, Callable[[], float]] = {
        str(shape.rows_each): timed_pass(target, shape, tables) for shape in shapes
    }
    if drafter is not None:
        lines[_DRAFT] = timed_pass(drafter, step, step_tables)
    try:
        times = _timed(lines, settings.pass_repeats)
    finally:
        for table in (*tables, *step_tables):
            table.free()
    one = times["1"]
    steps = times.get(_DRAFT)
    return {
        "target_ms": statistics.median(one),
        "draft_ms": 0.0 if steps is None else statistics.median(steps),
        "cost_ratio": 0.0 if steps is None else median_ratio(steps, one),
        "growth": {
            str(shape.rows_each - 1): median_ratio(times[str(shape.rows_each)], one)
            for shape in shapes[1:]
        },
        "weights": weights(target, drafter),
    }


def weights(target: ModelRunner, drafter: ModelRunner | None) -> dict[str, float]:
    """Weights of both, in MB."""
    sizes = {"target_mb": target.weight_bytes / 1e6}
    return sizes if drafter is None else sizes | {"draft_mb": drafter.weight_bytes / 1e6}


def _timed(lines: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    interleave(lines, 1)
    return interleave(lines, repeats)
