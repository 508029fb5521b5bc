"""Statistics of an engine: its load, its queues, its work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.costs.pass_times import PassTimes
from models.engine.load import EngineLoad
from models.kv.block_pool import BlockPool
from models.scheduler.batch import PassPlanner
from models.scheduler.sessions import PlannedRows, Session


class PassTotals:
    """Counts what passes held and took."""

    def __init__(self) -> None:
        self.num_prefill_rows = 0
        self.num_decode_rows = 0
        self.num_passes = 0
        self.passes_s = 0.0  # all of them

    def note(self, rows: Sequence[PlannedRows], duration_s: float) -> None:
        """Count one more pass."""
        num_logits = sum(planned.num_logits + planned.num_side_rows for planned in rows)
        self.num_decode_rows += num_logits
        self.num_prefill_rows += sum(planned.num_pass_rows for planned in rows) - num_logits
        self.num_passes += 1
        self.passes_s += duration_s


def engine_load(
    sessions: Iterable[Session],
    pool: BlockPool,
    totals: PassTotals,
    times: PassTimes,
    planner: PassPlanner,
) -> EngineLoad:
    """Looks at the `sessions` of an engine; takes microseconds for each."""
    prefix_cache = planner.prefix_cache
    everyone = list(sessions)
    busy = [(session, job) for session in everyone if (job := session.job) is not None]
    num_waiting_tokens = sum(
        max(0, len(session.tokens) - job.num_logits - session.num_computed_tokens)
        for session, job in busy
    )
    num_running = sum(bool(session.table.block_ids) for session, _ in busy)
    return EngineLoad(
        num_sessions=len(everyone),
        num_running=num_running,
        num_waiting=len(busy) - num_running,
        num_waiting_tokens=num_waiting_tokens,
        num_free_blocks=pool.num_free,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        num_preemptions=planner.num_preemptions,
        num_prefill_rows=totals.num_prefill_rows,
        num_decode_rows=totals.num_decode_rows,
        num_passes=totals.num_passes,
        passes_s=totals.passes_s,
        pass_ms=(times.mean_s or 0.0) * 1e3,
        num_cached_blocks=prefix_cache.published.num_blocks,
        prefix_queries=prefix_cache.num_queries,
        prefix_hits=prefix_cache.num_hits,
        prefix_evictions=prefix_cache.published.num_evictions,
    )
