"""Who gets blocks when a prefix cache has some of them: taken with all others, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from models.kv.block_pool import BlockPool
from models.scheduler.batch import PassPlan
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.sessions import Job, Session
from tests.models.scheduler import scenes
from tests.models.scheduler.scenes import SIZE, shape


class CountingPool(BlockPool):
    """Counts references that were added to blocks in use or idle."""

    num_shared = 0

    def share(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        self.num_shared += len(block_ids)
        super().share(block_ids)


class Scene(scenes.Scene):
    """There is a prefix cache; a text is a number and a length."""

    def __init__(self, num_blocks: int, max_rows: int = 1024) -> None:
        self.counted = CountingPool(num_blocks, SIZE)
        self.cache = PrefixCache(self.counted, lambda blocks: True, worth_waiting_rows=8)
        super().__init__(self.counted, max_rows, self.cache)

    def add(self, name: str, text: int, length: int, *, ready_s: float = 0.0) -> Session:
        ids = range(1000 * text, 1000 * text + length)
        session = self.open(name, ids, ready_s=ready_s, num_logits=1)
        session.committed_len = length
        return session

    def hold(self, name: str, text: int, length: int) -> Session:
        """A session that has no job and has computed and published its text."""
        session = self.add(name, text, length)
        session.job = None
        session.table.resize(length)
        session.num_computed_tokens = length
        self.cache.publish([session])
        return session

    def keep(self, text: int, length: int) -> None:
        """A text that is in the cache, while nobody holds it."""
        self.hold("gone", text, length)
        self.table.close("gone")

    def plan(self) -> PassPlan:
        plan = super().plan()
        self.cache.published.check([session.table for session in self.table])
        waiting = [*plan.starved, *plan.oversized]
        assert all(session.table.block_ids == [] for session in waiting)
        return plan

    def run(self, plan: PassPlan) -> None:
        """As if the pass had been computed, its jobs done."""
        for rows in plan.rows:
            rows.session.num_computed_tokens = rows.start + rows.num_rows
            if rows.num_logits:
                rows.session.job = None
        self.cache.publish([rows.session for rows in plan.rows])

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.cache.num_queries, self.cache.num_hits, self.planner.num_preemptions


def names(sessions: Iterable[Session]) -> list[str]:
    return [session.session_id for session in sessions]


def crowd() -> Scene:
    """100 of 256 blocks held, 150 cached, and one that wants 200 with these among them."""
    scene = Scene(256)
    scene.hold("oldest", 1, 100 * SIZE)
    scene.keep(2, 150 * SIZE)
    scene.add("large", 2, 200 * SIZE)
    return scene


def test_who_cannot_have_all_its_blocks_leaves_cached_ones_to_others() -> None:
    scene = crowd()
    scene.add("small", 3, 50 * SIZE)
    plan = scene.plan()
    assert shape(plan) == [("small", 0, 50 * SIZE, 1)]
    assert names(plan.starved) == ["large"]
    assert scene.counts == (50 * SIZE, 0, 0)


def test_who_waits_is_nobodys_victim_and_asks_once() -> None:
    scene = crowd()
    oldest = scene.table.get("oldest")
    assert oldest is not None
    for length in range(100 * SIZE + 1, 100 * SIZE + 60):
        oldest.rewrite(length - 1, [7])
        oldest.committed_len = length
        oldest.job = Job(0, 0.0, 1, 0)
        plan = scene.plan()
        assert shape(plan) == [("oldest", length - 1, 1, 1)]
        assert names(plan.starved) == ["large"]
        scene.run(plan)
    # Only what the oldest asks for: of the cached ones, few had to go.
    num_asked, num_found, num_preemptions = scene.counts
    assert (num_asked <= 100 * SIZE + 60, num_found, num_preemptions) == (True, 0, 0)
    scene.table.close("oldest")
    num_kept = 150 - scene.cache.published.num_evictions
    assert shape(scene.plan()) == [("large", num_kept * SIZE, (200 - num_kept) * SIZE, 1)]
    assert scene.counts == (num_asked + 200 * SIZE, num_kept * SIZE, 0)


def test_cached_blocks_that_an_older_job_took_in_this_pass_are_computed() -> None:
    scene = Scene(9)
    scene.keep(1, 16)
    scene.keep(2, 16)  # used later: the blocks of text 1 go first
    scene.add("taker", 3, 12, ready_s=1.0)
    late = scene.add("late", 1, 17, ready_s=2.0)
    # It was to compute one row; a prompt that comes in its place has no more room in this pass.
    plan = scene.plan()
    assert shape(plan) == [("taker", 0, 12, 1), ("late", 8, 1, 0)]
    scene.run(plan)
    plan = scene.plan()
    assert shape(plan) == [("late", 9, 8, 1)]
    scene.run(plan)
    assert late.num_computed_tokens == 17
    assert scene.counts == (12 + 17, 8, 0)


def test_who_took_cached_blocks_may_lose_them_to_an_older_session() -> None:
    scene = Scene(40)
    scene.add("oldest", 1, 35 * SIZE, ready_s=3.0)
    scene.add("oversized", 2, 41 * SIZE, ready_s=1.0)  # it looks at all who hold blocks
    holder = scene.hold("holder", 3, 2 * SIZE)
    scene.keep(4, 4 * SIZE)
    scene.add("young", 4, 10 * SIZE, ready_s=2.0)
    plan = scene.plan()
    assert names(rows.session for rows in plan.rows) == ["oldest"]
    assert names(plan.oversized) == ["oversized"]
    assert scene.planner.num_preemptions == 1
    assert len(holder.table.block_ids) == 2


@pytest.mark.parametrize("is_held", [False, True], ids=["idle", "of a younger one"])
def test_what_a_refused_session_gave_back_is_there_for_younger_ones(is_held: bool) -> None:
    scene = Scene(20)
    scene.hold("oldest", 1, 8 * SIZE)
    if not is_held:
        scene.keep(2, 4 * SIZE)
    scene.add("refused", 2, 20 * SIZE, ready_s=1.0)
    scene.add("younger", 3, 11 * SIZE, ready_s=2.0)
    scene.hold("youngest", 2 if is_held else 4, 4 * SIZE)
    plan = scene.plan()
    assert names(rows.session for rows in plan.rows) == ["younger"]
    assert names(plan.starved) == ["refused"]
    assert scene.planner.num_preemptions == 1


def test_of_many_who_must_wait_few_take_blocks_and_give_them_back() -> None:
    scene = Scene(60)
    scene.hold("oldest", 1, 50 * SIZE)
    for i in range(100):
        scene.add(f"s{i}", 1, 62 * SIZE - i % 3, ready_s=i)
    plan = scene.plan()
    assert len(plan.oversized) == 100
    assert scene.counted.num_shared <= 3 * 50
    assert scene.counts == (0, 0, 0)


def test_a_cached_prompt_is_short_and_who_awaits_one_holds_nothing() -> None:
    scene = Scene(64, max_rows=32)
    scene.keep(1, 40)
    scene.add("long", 2, 80, ready_s=1.0)
    scene.add("found", 1, 42, ready_s=2.0)
    same = scene.add("same", 2, 80, ready_s=3.0)
    plan = scene.plan()
    assert shape(plan) == [("found", 40, 2, 1), ("long", 0, 30, 0)]
    assert same.table.block_ids == []
    assert plan.starved == []
    scene.run(plan)
    scene.plan()
    assert same.table.block_ids == []
