"""The load of an engine, in numbers that cost next to nothing to read.

Imports no torch: coordinators, which hold no model, import this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One look at an engine, for metrics and scaling. A fresh engine has zeros."""

    num_sessions: int = 0
    num_running: int = 0  # with a message being worked on, and KV blocks
    num_waiting: int = 0  # with a message and no blocks: new, or preempted
    num_waiting_tokens: int = 0  # rows that jobs must compute before those that give them logits
    num_free_blocks: int = 0  # cached ones that no session holds are free
    num_blocks: int = 0
    block_size: int = 0  # tokens of a block
    num_preemptions: int = 0  # since the start
    num_prefill_rows: int = 0  # computed since the start, without logits
    num_decode_rows: int = 0  # with logits
    num_passes: int = 0  # since the start
    passes_s: float = 0.0  # seconds spent in them; the engine was busy for so long
    pass_ms: float = 0.0  # running mean of a pass
    num_cached_blocks: int = 0  # blocks of the prefix cache, held by sessions or not
    prefix_queries: int = 0  # tokens looked for in the prefix cache since the start
    prefix_hits: int = 0  # tokens found there
    prefix_evictions: int = 0  # blocks it lost because others needed the room

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks that sessions hold, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0
