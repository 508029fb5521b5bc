"""What an engine tells of itself: how full it is, who waits for what, what it has computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.forming import running_mean
from models.kv_cache import BlockPool
from models.pass_plan import PlannedRows
from models.prefix_cache import PrefixCache
from models.session_table import Session


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One look at an engine, for metrics and scaling."""

    num_sessions: int
    num_jobs: int  # sessions with a message being worked on: those running and those waiting
    num_running: int  # they hold KV blocks
    num_waiting: int  # they hold none: new, or preempted
    num_waiting_tokens: int  # rows that jobs must compute before those that give them logits
    num_kv_tokens: int  # computed tokens in the cache; those that sessions share count once
    num_free_blocks: int  # cached ones that no session holds are free
    num_blocks: int
    num_preemptions: int  # since the start
    num_prefill_rows: int  # computed since the start, without logits
    num_decode_rows: int  # with logits
    pass_ms: float  # running mean of a pass
    num_cached_blocks: int  # of the prefix cache, held by sessions or not
    prefix_queries: int  # tokens looked for in the prefix cache since the start
    prefix_hits: int  # tokens found there
    prefix_evictions: int  # blocks it lost because others needed the room


class PassTotals:
    """Counts what passes held and took."""

    def __init__(self) -> None:
        self.num_prefill_rows = 0
        self.num_decode_rows = 0
        self.pass_s: float | None = None  # running mean

    def note(self, rows: Sequence[PlannedRows], duration_s: float) -> None:
        """One more pass."""
        num_logits = sum(planned.num_logits for planned in rows)
        self.num_decode_rows += num_logits
        self.num_prefill_rows += sum(planned.num_rows for planned in rows) - num_logits
        self.pass_s = running_mean(self.pass_s, duration_s)


def engine_stats(
    sessions: Iterable[Session],
    pool: BlockPool,
    totals: PassTotals,
    num_preemptions: int,
    prefix_cache: PrefixCache,
) -> EngineStats:
    """Look at the `sessions` of an engine and their blocks."""
    everyone = list(sessions)
    busy = [(session, job) for session in everyone if (job := session.job) is not None]
    num_waiting_tokens = sum(
        max(0, len(session.log) - job.num_logits - session.num_computed) for session, job in busy
    )
    num_running = sum(bool(session.table.block_ids) for session, _ in busy)
    return EngineStats(
        num_sessions=len(everyone),
        num_jobs=len(busy),
        num_running=num_running,
        num_waiting=len(busy) - num_running,
        num_waiting_tokens=num_waiting_tokens,
        num_kv_tokens=_num_kv_tokens(everyone, pool.block_size),
        num_free_blocks=pool.num_free,
        num_blocks=pool.num_blocks,
        num_preemptions=num_preemptions,
        num_prefill_rows=totals.num_prefill_rows,
        num_decode_rows=totals.num_decode_rows,
        pass_ms=(totals.pass_s or 0.0) * 1e3,
        num_cached_blocks=prefix_cache.num_blocks,
        prefix_queries=prefix_cache.num_queries,
        prefix_hits=prefix_cache.num_hits,
        prefix_evictions=prefix_cache.num_evictions,
    )


def _num_kv_tokens(sessions: Iterable[Session], block_size: int) -> int:
    """Computed tokens; a block that several sessions list counts with what most of it holds."""
    in_block: dict[int, int] = {}
    for session in sessions:
        left = session.num_computed
        for block in session.table.block_ids:
            if left <= 0:
                break
            in_block[block] = max(in_block.get(block, 0), min(left, block_size))
            left -= block_size
    return sum(in_block.values())
