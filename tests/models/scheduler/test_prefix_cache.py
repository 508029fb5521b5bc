"""The prefix cache over plain block tables: against a naive model, and rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from models.kv.block_pool import BlockPool, OutOfBlocks
from models.protocol import token_sequence
from models.protocol.messages import Sampling
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.published_blocks import CachedBlock
from models.scheduler.sessions import Job, PlannedRows, Session
from tests.cases.messages import opening

SIZE = 2
NUM_BLOCKS = 12
SALTS = st.sampled_from(["", "a"])
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=11)  # so short that prefixes meet


class Scene:
    """Sessions over a pool, without a model: what was computed of which ids is noted per block."""

    def __init__(self, num_blocks: int = NUM_BLOCKS, **terms: Any) -> None:
        self.pool = BlockPool(num_blocks, SIZE)
        self.infinite: set[int] = set()
        self.cache = PrefixCache(self.pool, lambda blocks: not self.infinite & set(blocks), **terms)
        self.sessions: list[Session] = []
        self._orders = count()

    def open(self, ids: Sequence[int], *, salt: str = "", num_logits: int = 1) -> Session:
        opened = opening("s", Sampling(), 0, cache_salt=salt)
        session = Session(opened, next(self._orders), self.pool.new_table(), 0.0)
        session.rewrite(0, ids)
        session.committed_len = len(ids)
        session.job = Job(0, 0.0, num_logits, 0)
        self.sessions.append(session)
        return session

    def compute(self, session: Session, num_rows: int = 100) -> None:
        """As a pass does: look, take blocks, compute up to `num_rows` rows, publish."""
        assert session.job is not None
        self.cache.adopt(session)
        length = len(session.tokens)
        start = session.table.first_row(
            min(session.num_computed_tokens, length - session.job.num_logits)
        )
        session.reserve_rows(start)
        session.num_computed_tokens = min(length, start + num_rows)
        self.cache.publish([session])

    def close(self, session: Session) -> None:
        self.sessions.remove(session)
        session.release_blocks()

    def check(self) -> None:
        tables = [session.table for session in self.sessions]
        self.pool.check(tables)
        self.cache.published.check(tables)


# --- against a model ----------------------------------------------------------------------------


class CacheMachine(RuleBasedStateMachine):
    """The model: what ids each block was computed from, and which prefixes were published.

    Hashes collide on purpose. Nothing is found that was not published under the same salt, and
    what is found was computed from the very ids; while nothing was evicted, all of it is found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.content: dict[int, tuple[int, ...]] = {}  # block -> ids up to its end
        self.published: set[tuple[str, tuple[int, ...]]] = set()

    @rule(ids=TEXTS, salt=SALTS, num_logits=st.integers(1, 3), num_guessed=st.integers(0, 4))
    def run(self, ids: list[int], salt: str, num_logits: int, num_guessed: int) -> None:
        scene = self.scene
        session = scene.open(ids, salt=salt, num_logits=min(num_logits, len(ids)))
        session.committed_len = max(0, len(ids) - num_guessed)
        scene.cache.adopt(session)
        num_found = session.num_computed_tokens
        assert num_found <= len(ids) - num_logits or num_found == 0
        for index, block in enumerate(session.table.block_ids):
            stop = (index + 1) * SIZE
            assert self.content[block] == tuple(ids[:stop])
            assert (salt, tuple(ids[:stop])) in self.published
        if scene.cache.published.num_evictions == 0:
            expected = self._num_expected(ids, salt, len(ids) - num_logits)
            assert num_found == expected or token_sequence._MODULUS < 100
        try:
            scene.compute(session)
        except OutOfBlocks:
            return
        for index, block in enumerate(session.table.block_ids):
            stop = (index + 1) * SIZE
            if stop <= session.committed_len:
                self.published.add((salt, tuple(ids[:stop])))
            if stop <= len(ids):
                self.content[block] = tuple(ids[:stop])

    def _num_expected(self, ids: list[int], salt: str, limit: int) -> int:
        found = 0
        while found + SIZE <= limit and (salt, tuple(ids[: found + SIZE])) in self.published:
            found += SIZE
        return found

    @rule(index=st.integers(0, 20))
    def close(self, index: int) -> None:
        if self.scene.sessions:
            self.scene.close(self.scene.sessions[index % len(self.scene.sessions)])

    @rule(index=st.integers(0, 20))
    def preempt(self, index: int) -> None:
        if self.scene.sessions:
            self.scene.sessions[index % len(self.scene.sessions)].release_blocks()

    @rule(num_blocks=st.integers(1, NUM_BLOCKS))
    def evict(self, num_blocks: int) -> None:
        pool = self.scene.pool
        pool.free(pool.allocate(min(num_blocks, pool.num_free)))

    @invariant()
    def check(self) -> None:
        self.scene.check()
        cache = self.scene.cache
        assert 0 <= cache.num_hits <= cache.num_queries


def _run_machine(phases: Sequence[Phase] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=25,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=phases,
        ),
    )


def test_the_cache_is_as_its_model():
    _run_machine()


def test_the_cache_is_as_its_model_where_hashes_collide(monkeypatch):
    monkeypatch.setattr(token_sequence, "_MODULUS", 3)
    _run_machine()


def _compare_no_ids(block, ids, parent):
    return block.parent is parent


def _compare_no_predecessor(block, ids, parent):
    return block.ids == ids


@pytest.mark.parametrize("damage", [_compare_no_ids, _compare_no_predecessor])
def test_the_machine_finds_a_comparison_left_out(monkeypatch, damage):
    monkeypatch.setattr(token_sequence, "_MODULUS", 3)
    monkeypatch.setattr(CachedBlock, "holds", damage)
    with pytest.raises((AssertionError, KeyError)):
        _run_machine([Phase.generate])


# --- rule by rule -------------------------------------------------------------------------------


def test_a_session_takes_the_whole_blocks_that_leave_its_logits_to_compute():
    scene = Scene()
    first = scene.open([1, 2, 3, 4, 5, 6, 7])
    scene.compute(first)
    for num_logits, num_found in ((1, 4), (2, 4), (3, 2), (6, 0)):
        session = scene.open([1, 2, 3, 4, 5, 6], num_logits=num_logits)
        scene.cache.adopt(session)
        assert session.num_computed_tokens == num_found
        assert session.table.block_ids == first.table.block_ids[: num_found // SIZE]
        assert session.take_cached_tokens() == num_found
        assert session.take_cached_tokens() == 0
        scene.check()
        scene.close(session)
    assert (scene.cache.num_queries, scene.cache.num_hits) == (7 + 4 * 6, 10)


def test_a_prompt_is_found_block_by_block_while_it_is_computed():
    scene = Scene()
    first, second = scene.open([1, 2, 3, 4, 5, 6, 7]), scene.open([1, 2, 3, 4, 5, 6, 8])
    scene.compute(first, 3)
    scene.cache.adopt(second)
    assert second.num_computed_tokens == 2
    scene.compute(first, 3)
    scene.compute(second, 0)
    assert second.num_computed_tokens == 6
    assert (second.num_cached_tokens, scene.cache.num_hits) == (6, 6)
    scene.check()


def test_what_was_half_computed_is_given_up_for_a_whole_block():
    scene = Scene()
    first, second = scene.open([1, 2, 3, 4, 5]), scene.open([1, 2, 3, 4, 5])
    scene.compute(second, 1)
    scene.compute(first)
    scene.cache.adopt(second)
    assert (second.num_computed_tokens, second.table.num_tokens) == (4, 4)
    assert second.table.block_ids == first.table.block_ids[:2]
    assert scene.cache.num_hits == 3
    scene.check()


def test_of_two_equal_blocks_one_stays():
    scene = Scene()
    first, second = scene.open([1, 2, 3, 4, 5]), scene.open([1, 2, 3, 4, 6])
    for session in (first, second):
        session.reserve_rows(0)
        session.num_computed_tokens = 5
    assert scene.pool.num_free == NUM_BLOCKS - 6
    scene.cache.publish([first, second])
    assert second.table.block_ids[:2] == first.table.block_ids[:2]
    assert scene.pool.num_free == NUM_BLOCKS - 4
    scene.check()


def test_guesses_and_uncomputed_rows_are_not_published():
    scene = Scene()
    session = scene.open([1, 2, 3, 4, 5, 6])
    session.committed_len = 5
    scene.compute(session, 6)
    assert scene.cache.published.num_blocks == 2
    session.rewrite(5, [7, 8, 9])  # another guess takes the place of the first
    session.committed_len = 8
    scene.compute(session, 1)
    assert (session.num_computed_tokens, scene.cache.published.num_blocks) == (6, 3)
    scene.check()


def test_what_is_not_finite_is_not_published():
    scene = Scene()
    bad, good = scene.open([1, 2, 3, 4, 5]), scene.open([6, 7, 8])
    for session in (bad, good):
        session.reserve_rows(0)
        session.num_computed_tokens = len(session.tokens)
    scene.infinite = {bad.table.block_ids[1]}
    scene.cache.publish([bad, good])
    assert scene.cache.published.num_blocks == 1
    assert not scene.pool.is_kept(bad.table.block_ids[0])
    assert scene.pool.is_kept(good.table.block_ids[0])


def test_a_disabled_cache_keeps_nothing():
    scene = Scene(is_enabled=False)
    for _ in range(2):
        session = scene.open([1, 2, 3])
        scene.compute(session)
        assert session.num_computed_tokens == 3
    assert (scene.cache.published.num_blocks, scene.cache.num_queries, scene.cache.num_hits) == (
        0,
        0,
        0,
    )
    assert not scene.cache.awaits(_rows(session, 0, 3), [_rows(session, 0, 3)])


def test_a_session_that_must_compute_its_rows_finds_none(monkeypatch):
    scene = Scene()
    scene.compute(scene.open([1, 2, 3]))
    monkeypatch.setattr(Session, "may_use_cached_prefix", property(lambda session: False))
    session = scene.open([1, 2, 3])
    scene.cache.adopt(session)
    assert (session.num_computed_tokens, scene.cache.num_queries) == (0, 3)
    scene.check()


def _rows(session: Session, start: int, num_rows: int) -> PlannedRows:
    assert session.job is not None
    return PlannedRows(session, session.job, start, num_rows, num_logits=1)


@pytest.mark.parametrize(
    ("ids", "salt", "planned", "committed", "expected"),
    [
        ([1, 2, 3, 4, 9, 9], "", (0, 6), 6, True),
        ([1, 2, 3, 4, 9, 9], "", (1, 5), 6, True),  # its first row is computed already
        ([1, 2, 3, 4, 9, 9], "", (0, 3), 6, False),  # too few of the rows in this pass
        ([1, 2, 3, 9, 9, 9], "", (0, 6), 6, False),
        ([1, 2, 3, 4], "", (0, 6), 6, False),  # its last row must be computed anyhow
        ([1, 2, 3, 4, 9, 9], "b", (0, 6), 6, False),
        ([1, 2, 3, 4, 9, 9], "", (0, 6), 3, False),  # a draft is not published
        ([1, 2, 3, 4, 9, 9], "", (2, 4), 6, False),  # the first block is nobody's
    ],
)
def test_who_is_worth_waiting_for(ids, salt, planned, committed, expected):
    scene = Scene(worth_waiting_rows=4)
    other = scene.open([1, 2, 3, 4, 5, 6])
    other.committed_len = committed
    session = scene.open(ids, salt=salt)
    need = _rows(session, 0, len(ids))
    assert scene.cache.awaits(need, [_rows(other, *planned)]) == expected
    assert not scene.cache.awaits(need, [])


def _drop_key(scene: Scene) -> None:
    scene.cache.published.by_key.popitem()


def _drop_from_pool(scene: Scene) -> None:
    scene.pool._kept.pop()


def _lose_the_first(scene: Scene) -> None:
    first = next(iter(scene.cache.published.by_block.values()))
    del scene.cache.published.by_block[first.block_id], scene.cache.published.by_key[first.key]


def _hold_half_a_chain(scene: Scene) -> None:
    scene.sessions[0].table.block_ids[0] = 11


@pytest.mark.parametrize(
    "damage", [_drop_key, _drop_from_pool, _lose_the_first, _hold_half_a_chain]
)
def test_check_finds_damage(damage):
    scene = Scene()
    scene.compute(scene.open([1, 2, 3, 4, 5]))
    scene.check()
    damage(scene)
    with pytest.raises(AssertionError):
        scene.cache.published.check([session.table for session in scene.sessions])
