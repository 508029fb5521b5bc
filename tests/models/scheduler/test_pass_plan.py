"""Row budget, chunking, blocks and preemption, without a model."""

import msgspec
import pytest

from models.costs.pass_times import PassTimes
from models.kv.block_pool import BlockPool
from models.scheduler.batch import PassPlanner
from models.scheduler.prefill_budget import PrefillBudget
from models.scheduler.sessions import Job, Session
from tests.models.scheduler import scenes
from tests.models.scheduler.scenes import SIZE, shape


class Scene(scenes.Scene):
    """All texts are one; some of it is computed already."""

    def __init__(
        self, num_blocks: int = 64, max_rows: int = 16, kind: type[BlockPool] = BlockPool
    ) -> None:
        super().__init__(kind(num_blocks, SIZE), max_rows)

    def add(
        self,
        name: str,
        length: int,
        *,
        computed: int = 0,
        num_logits: int = 1,
        ready_s: float = 0,
        goes_first: bool = False,
    ) -> Session:
        session = self.open(name, range(length), ready_s=ready_s, num_logits=num_logits)
        session.opened = msgspec.structs.replace(session.opened, goes_first=goes_first)
        session.num_computed_tokens = computed
        session.table.resize(computed)
        return session


def test_short_needs_come_whole_and_first() -> None:
    scene = Scene()
    scene.add("prompt", 100)
    scene.add("decode", 10, computed=9)
    scene.add("verify", 20, computed=16, num_logits=4)
    scene.add("lagging", 12, computed=10)
    assert shape(scene.plan()) == [
        ("decode", 9, 1, 1),
        ("verify", 16, 4, 4),
        ("lagging", 10, 2, 1),
        ("prompt", 0, 9, 0),
    ]


def test_all_rows_that_give_logits_are_computed_again_if_need_be() -> None:
    scene = Scene()
    scene.add("repeated", 10, computed=10, num_logits=3)
    assert shape(scene.plan()) == [("repeated", 7, 3, 3)]


def test_a_prompt_is_cut_so_that_its_logits_stay_together() -> None:
    scene = Scene(max_rows=8)
    session = scene.add("s", 20, num_logits=6)
    seen = []
    while session.num_computed_tokens < 20:
        (rows,) = scene.plan().rows
        seen.append((rows.num_rows, rows.num_logits))
        session.num_computed_tokens = rows.start + rows.num_rows
    assert seen == [(8, 0), (6, 0), (6, 6)]


def test_prompts_keep_a_quarter_of_the_rows() -> None:
    scene = Scene(max_rows=16)
    scene.add("prompt", 50)
    for i in range(20):
        scene.add(f"decode{i}", 5, computed=4)
    plan = scene.plan()
    assert sum(rows.num_rows for rows in plan.rows) == 16
    assert ("prompt", 0, 4, 0) in shape(plan)


def test_who_waited_longest_goes_first() -> None:
    scene = Scene(max_rows=4)
    for i in range(6):
        scene.add(f"s{i}", 5, computed=4, ready_s=-i)
    assert [name for name, *_ in shape(scene.plan())] == ["s5", "s4", "s3", "s2"]


def test_a_prompt_that_goes_first_has_all_rows_of_a_pass_that_can_hold_it() -> None:
    scene = Scene(max_rows=200)
    times = PassTimes()
    for num_rows in (1, 50, 100):  # a row costs much: prompts get few beside a stream
        times.note(num_rows, num_rows / 1000, 1.0)
    scene.planner = PassPlanner(scene.pool, 200, PrefillBudget(1.5, times))
    scene.add("decode", 10, computed=9)
    scene.add("before", 100, ready_s=0.0)
    scene.add("first", 60, ready_s=1.0, goes_first=True)
    assert shape(scene.plan())[:2] == [("decode", 9, 1, 1), ("first", 0, 60, 1)]


def test_a_longer_prompt_that_goes_first_leads_the_others() -> None:
    scene = Scene(max_rows=16)
    scene.add("decode", 10, computed=9)
    for number in range(2):
        scene.add(f"other{number}", 20)
        scene.add(f"first{number}", 40, ready_s=1.0, goes_first=True)
    assert shape(scene.plan()) == [("decode", 9, 1, 1), ("first0", 0, 15, 0)]


def test_the_youngest_loses_its_blocks_and_keeps_its_log() -> None:
    scene = Scene(num_blocks=6)
    old = scene.add("old", 13, computed=12)
    middle = scene.add("middle", 5, computed=4)
    young = scene.add("young", 8, computed=7)
    middle.job = None
    plan = scene.plan()
    assert [name for name, *_ in shape(plan)] == ["old"]
    assert (young.num_computed_tokens, young.table.block_ids, len(young.tokens)) == (0, [], 8)
    assert middle.num_computed_tokens == 4
    assert old.table.num_tokens == 13
    assert scene.planner.num_preemptions == 1


def test_a_preempted_session_leaves_the_pass_it_was_planned_for() -> None:
    scene = Scene(num_blocks=5)
    scene.add("old", 13, computed=12, ready_s=2.0)
    scene.add("young", 8, computed=7, ready_s=1.0)
    assert [name for name, *_ in shape(scene.plan())] == ["old"]


def test_a_session_preempted_in_this_plan_does_not_count_on_its_lost_rows() -> None:
    scene = Scene(num_blocks=5)
    scene.add("old", 13, computed=12, ready_s=1.0)
    young = scene.add("young", 4, computed=3, ready_s=2.0)
    young.table.resize(8)  # it was rolled back: less than it gives up would do
    assert [name for name, *_ in shape(scene.plan())] == ["old"]
    assert young.num_computed_tokens == 0


def test_the_oldest_is_never_preempted_and_the_asker_waits() -> None:
    scene = Scene(num_blocks=4)
    old = scene.add("old", 16, computed=16)
    old.job = None
    young = scene.add("young", 5)
    plan = scene.plan()
    assert plan.rows == []
    assert plan.starved == [young]
    assert old.num_computed_tokens == 16


def test_a_session_larger_than_the_pool_is_told() -> None:
    scene = Scene(num_blocks=4)
    session = scene.add("s", 17, computed=16)
    plan = scene.plan()
    assert (plan.rows, plan.starved, plan.oversized) == ([], [], [session])


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 5])
def test_tiny_budgets_get_on(max_rows: int) -> None:
    scene = Scene(max_rows=max_rows)
    sessions = [scene.add(f"s{i}", 7 + i, num_logits=scene.planner.max_logits) for i in range(3)]
    for tick in range(60):
        for rows in scene.plan().rows:
            rows.session.num_computed_tokens = rows.start + rows.num_rows
            rows.job.ready_s = tick
            if rows.num_logits:
                rows.session.job = None
    assert all(session.job is None for session in sessions)


def fork(scene: Scene, parent: Session, name: str, num_tokens: int) -> Session:
    """A session of the parent's first tokens that shares its whole computed blocks."""
    session = scene.add(name, num_tokens)
    session.job = None
    shared = min(num_tokens, parent.num_computed_tokens) // 4
    session.adopt_blocks(0, parent.table.block_ids[:shared])
    return session


def test_rows_behind_shared_blocks_are_all_that_a_fork_computes() -> None:
    scene = Scene()
    parent = scene.add("parent", 11, computed=11)
    child = fork(scene, parent, "child", 11)
    parent.job = None
    child.job = Job(0, 0.0, 1, 0)
    assert shape(scene.plan()) == [("child", 8, 3, 1)]
    assert child.table.block_ids[:2] == parent.table.block_ids[:2]


@pytest.mark.parametrize("who", ["parent", "child"])
def test_who_rolls_back_into_a_shared_block_computes_it_again(who: str) -> None:
    scene = Scene()
    parent = scene.add("parent", 12, computed=12)
    child = fork(scene, parent, "child", 12)
    parent.job = None
    blocks = list(parent.table.block_ids)
    session = {"parent": parent, "child": child}[who]
    session.rewrite(6, [90, 91])
    session.job = Job(0, 0.0, 2, 0)
    assert shape(scene.plan()) == [(who, 4, 4, 2)]
    assert session.num_computed_tokens == 4
    assert session.table.block_ids[0] == blocks[0]
    other = child if session is parent else parent
    assert other.table.block_ids == blocks
    assert session.table.block_ids[1] not in blocks


def test_taking_the_blocks_of_a_fork_leaves_those_it_shares() -> None:
    scene = Scene(num_blocks=5)
    parent = scene.add("parent", 17, computed=12)
    child = fork(scene, parent, "child", 8)
    child.rewrite(8, [90, 91, 92, 93, 94])
    child.table.resize(13)  # two blocks of its own
    assert scene.pool.num_free == 0
    assert shape(scene.plan()) == [("parent", 12, 5, 1)]
    assert (child.table.block_ids, child.num_computed_tokens, len(child.tokens)) == ([], 0, 13)
    assert scene.planner.num_preemptions == 1


def test_a_shared_block_that_nobody_else_needs_any_more_is_kept() -> None:
    """The younger sharer is preempted for want of a block, so there is nothing to give up."""
    scene = Scene(num_blocks=3)
    parent = scene.add("parent", 12, computed=12)
    fork(scene, parent, "child", 12)
    blocks = list(parent.table.block_ids)
    parent.rewrite(11, [90])
    assert shape(scene.plan()) == [("parent", 8, 4, 1)]
    assert parent.table.block_ids == blocks


def test_nobody_gives_up_blocks_in_vain() -> None:
    scene = Scene(num_blocks=6)
    scene.add("oldest", 12, computed=12).job = None
    scene.add("large", 20)
    small = scene.add("small", 8, computed=7)
    plan = scene.plan()
    assert shape(plan) == [("small", 7, 1, 1)]
    assert [session.session_id for session in plan.starved] == ["large"]
    assert (small.num_computed_tokens, scene.planner.num_preemptions) == (7, 0)


def test_who_would_free_nothing_keeps_its_blocks_and_an_older_one_loses() -> None:
    scene = Scene(num_blocks=6)
    old = scene.add("old", 9, computed=8)
    scene.add("middle", 8, computed=8).job = None
    shared = fork(scene, old, "young", 8)
    filler = scene.add("filler", 8, computed=8)
    filler.job = None
    filler.order = -1  # older than all: it is not to be had
    assert scene.pool.num_free == 0
    assert [name for name, *_ in shape(scene.plan())] == ["old"]
    assert (shared.num_computed_tokens, len(shared.table.block_ids)) == (8, 2)
    (middle,) = (one for one in scene.table if one.session_id == "middle")
    assert middle.table.block_ids == []
    assert scene.planner.num_preemptions == 1


def test_sharers_lose_together_what_none_of_them_frees_alone() -> None:
    scene = Scene(num_blocks=4)
    old = scene.add("old", 5)
    parent = scene.add("parent", 12, computed=12)
    parent.job = None
    children = [fork(scene, parent, f"c{i}", 12) for i in range(3)]
    assert scene.pool.num_free == 1
    assert [name for name, *_ in shape(scene.plan())] == ["old"]
    assert [s.table.block_ids for s in (parent, *children)] == [[]] * 4
    assert scene.planner.num_preemptions == 4
    assert old.table.num_tokens == 5


def test_nobody_loses_blocks_for_a_claim_that_they_do_not_satisfy() -> None:
    scene = Scene(num_blocks=6)
    first = scene.add("first", 12, computed=12)
    first.job = None
    scene.add("asker", 20)
    young = scene.add("young", 5, computed=4)
    plan = scene.plan()
    assert [name for name, *_ in shape(plan)] == ["young"]
    assert [s.session_id for s in plan.starved] == ["asker"]
    assert scene.planner.num_preemptions == 0
    scene.table.close("first")
    assert [name for name, *_ in shape(scene.plan())] == ["asker"]
    assert young.table.block_ids == []


class CountingPool(BlockPool):
    """Counts how often somebody's references are looked at."""

    num_looks = 0

    def num_refs(self, block_id: int) -> int:
        self.num_looks += 1
        return super().num_refs(block_id)


@pytest.mark.parametrize("oldest_first", [True, False])
def test_planning_without_free_blocks_looks_at_each_holder_a_few_times(oldest_first: bool) -> None:
    """300 sessions want in while 300 others hold all blocks."""
    num = 300
    scene = Scene(num, 4096, CountingPool)
    if not oldest_first:
        for i in range(num):
            scene.add(f"holder{i}", 4, computed=4).job = None
    for i in range(num):
        scene.add(f"asker{i}", 5 + i % 7, ready_s=i)
    if oldest_first:
        for i in range(num):
            scene.add(f"holder{i}", 4, computed=4).job = None
    plan = scene.plan()
    assert len(plan.rows) + len(plan.starved) == num
    assert bool(plan.rows) is oldest_first
    assert isinstance(scene.pool, CountingPool)
    assert scene.pool.num_looks <= 12 * num
