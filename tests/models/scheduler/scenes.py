"""Sessions over a pool of blocks of four tokens, planned for without a model."""

from __future__ import annotations

from collections.abc import Sequence

from models.kv.block_pool import BlockPool
from models.protocol.messages import Sampling
from models.scheduler.batch import PassPlan, PassPlanner
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.sessions import Job, Session, SessionTable
from tests.cases.messages import EPOCH, opening

SIZE = 4  # tokens of a block


class Scene:
    """An engine without its model, with a prefix cache or none."""

    def __init__(self, pool: BlockPool, max_rows: int, cache: PrefixCache | None = None) -> None:
        self.pool = pool
        self.table = SessionTable(EPOCH, pool.new_table)
        self.planner = PassPlanner(pool, max_rows, prefix_cache=cache)

    def open(self, name: str, ids: Sequence[int], *, ready_s: float, num_logits: int) -> Session:
        """Open a session that waits for a pass, with nothing computed."""
        session = self.table.open(opening(name, Sampling(), 0), 0.0)
        assert session is not None
        session.rewrite(0, ids)
        session.job = Job(0, ready_s, num_logits, 0)
        return session

    def plan(self) -> PassPlan:
        plan = self.planner.plan([s for s in self.table if s.job is not None], self.table)
        self.pool.check([session.table for session in self.table])
        for rows in plan.rows:
            assert rows.session.table.num_tokens >= rows.start + rows.num_rows
        return plan


def shape(plan: PassPlan) -> list[tuple[str, int, int, int]]:
    return [(r.session.session_id, r.start, r.num_rows, r.num_logits) for r in plan.rows]
