"""A random walk over the KV cache of a real runner, checked after every step.

The texts form a tree, so that rolling back and going on another way meets few enough prefixes to
know the logits of all of them beforehand: each text is computed once, alone, in one pass, by a
runner of its own. Blocks that nobody holds or keeps are filled with NaN, so that reading one shows.
Sessions find each other's blocks in a prefix cache; of every block in it the walk knows that its
tokens were committed, under its salt.
"""

from __future__ import annotations

import random
from collections import Counter

import torch

from models.config import DtypeName, EngineConfig
from models.engine.runner import ModelRunner
from models.kv.block_pool import BlockPool, BlockTable
from models.kv.rows import SequenceRows
from models.protocol.messages import Open, Sampling
from models.protocol.token_sequence import TokenSequence
from models.scheduler.batch import PassPlanner
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.published_blocks import Key
from models.scheduler.sessions import Job, PlannedRows, Session, SessionTable
from tests.harness.kv_memory import own_storage

BLOCK_SIZE = 4
NUM_BLOCKS = 40  # of 160 tokens: seven sessions of up to 100 may want four times as many
MAX_BATCH_ROWS = 40
MAX_SESSIONS = 7
_VOCAB_SIZE = 512
_NUM_TEXTS = 16
_TEXT_TOKENS = 100  # two key chunks
_WEIGHTS = {
    "run": 40,
    "extend": 26,
    "roll_back": 16,
    "open": 6,
    "close": 5,
    "preempt": 2,
    "evict": 1,
}


def make_runner(
    path: str, dtype: DtypeName, *, num_blocks: int, max_num_batched_tokens: int
) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=path,
            dtype=dtype,
            max_model_len=_TEXT_TOKENS,
            kv_cache_tokens=num_blocks * BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=max_num_batched_tokens,
            num_threads=1,
        )
    )


class Tree:
    """Texts that share prefixes, and the logits after every token of each."""

    def __init__(self, path: str, dtype: DtypeName, choose: random.Random) -> None:
        self.texts: list[list[int]] = []
        for _ in range(_NUM_TEXTS):
            stem = choose.choice(self.texts)[: choose.randrange(_TEXT_TOKENS)] if self.texts else []
            leaf = choose.choices(range(_VOCAB_SIZE), k=_TEXT_TOKENS - len(stem))
            self.texts.append(stem + leaf)
        runner = make_runner(
            path, dtype, num_blocks=_TEXT_TOKENS // BLOCK_SIZE, max_num_batched_tokens=_TEXT_TOKENS
        )
        self.hashes = [TokenSequence(text) for text in self.texts]
        self.logits = [self._alone(runner, text) for text in self.texts]

    @staticmethod
    def _alone(runner: ModelRunner, text: list[int]) -> torch.Tensor:
        table = runner.pool.new_table()
        table.resize(len(text))
        logits = runner.forward([SequenceRows(table, 0, text, len(text))])
        table.free()
        return logits

    def parting(self, text: int, other: int) -> int:
        """Length of what two texts have in common."""
        both = zip(self.texts[text], self.texts[other], strict=True)
        return next((i for i, (a, b) in enumerate(both) if a != b), _TEXT_TOKENS)

    def sharing(self, text: int, length: int) -> list[int]:
        """Texts whose first `length` tokens are those of `text`."""
        prefix = self.texts[text][:length]
        return [i for i, other in enumerate(self.texts) if other[:length] == prefix]


class Walk:
    """The sessions of an engine, and beside each what it should hold: a prefix of a text."""

    def __init__(self, path: str, dtype: DtypeName, seed: int) -> None:
        self.choose = random.Random(seed)
        self.tree = Tree(path, dtype, self.choose)
        self.runner = make_runner(
            path, dtype, num_blocks=NUM_BLOCKS, max_num_batched_tokens=MAX_BATCH_ROWS
        )
        self.pool = self.runner.pool
        self.sessions = SessionTable(1, self.pool.new_table)
        self.cache = PrefixCache(self.pool, self.runner.are_finite, worth_waiting_rows=8)
        self.planner = PassPlanner(self.pool, MAX_BATCH_ROWS, prefix_cache=self.cache)
        self.committed: set[Key] = set()  # salt, hash of every prefix ever committed
        self.expected: dict[str, tuple[int, int]] = {}  # text, length
        self.counts: Counter[str] = Counter()
        self.num_steps = 0
        self._unused: set[int] = set()
        self._num_named = 0
        self._poison()

    def run(self, num_steps: int) -> None:
        """Take that many steps, let every job end, free everything."""
        names = list(_WEIGHTS)
        for name in self.choose.choices(names, list(_WEIGHTS.values()), k=num_steps):
            self._step(name)
        self._drain()

    def _step(self, name: str) -> None:
        self.num_steps += 1
        self.counts[name] += bool(getattr(self, f"_{name}")())
        self._check()

    def _drain(self) -> None:
        """Idle sessions hold blocks and are closed; the oldest of the others always gets on."""
        for _ in range(20 * MAX_SESSIONS):
            for session in list(self.sessions):
                if session.job is None:
                    self._close_session(session)
            self._step("run")
        assert len(self.sessions) == 0
        assert self.pool.num_free == NUM_BLOCKS

    # --- steps: each says whether there was something to do -----------------------------------

    def _open(self) -> bool:
        if len(self.sessions) == MAX_SESSIONS:
            return False
        text = self.choose.randrange(_NUM_TEXTS)
        session = self.sessions.open(self._new_open(), 0.0)
        assert session is not None
        self._rewrite(session, text, 0, self.choose.choice([1, 5, 30, 60]))
        return True

    def _extend(self) -> bool:
        session = self._pick(is_idle=True)
        if session is None:
            return False
        text, length = self.expected[session.session_id]
        self._rewrite(session, text, length, self.choose.choice([1, 1, 2, 5, 9, 20]))
        return True

    def _roll_back(self) -> bool:
        """Go on another way, or only back, from any place; the job, if any, is replaced."""
        session = self._pick()
        if session is None:
            return False
        text, length = self.expected[session.session_id]
        if self.choose.random() < 0.3:  # where the ways of two texts part
            way = self.choose.randrange(_NUM_TEXTS)
            base_len = min(length, self.tree.parting(text, way))
        else:
            base_len = self.choose.randint(self.choose.choice([0, max(0, length - 6)]), length)
            way = self.choose.choice(self.tree.sharing(text, base_len))
        text = way
        self._rewrite(session, text, base_len, self.choose.choice([0, 1, 3, 9]))
        return True

    def _evict(self) -> bool:
        """Others take all free blocks but a few and give them back."""
        self.pool.free(self.pool.allocate(self.choose.randint(0, self.pool.num_free)))
        return True

    def _close(self) -> bool:
        session = self._pick()
        if session is not None:
            self._close_session(session)
        return session is not None

    def _preempt(self) -> bool:
        session = self._pick()
        if session is not None:
            session.release_blocks()
        return session is not None

    def _run(self) -> bool:
        """One pass as an engine makes it; its logits are compared bit for bit."""
        before = {s.session_id: list(s.table.block_ids) for s in self.sessions}
        waiting = [session for session in self.sessions if session.job is not None]
        plan = self.planner.plan(waiting, self.sessions)
        busy = {*plan.starved, *(rows.session for rows in plan.rows)}
        self.counts["awaited"] += bool(plan.rows) and len(waiting) > len(busy)
        self._note_own_blocks(before, plan.rows)
        self.counts["starved"] += len(plan.starved)
        assert not plan.oversized
        if not plan.rows:
            return False
        logits = self.runner.forward([_sequence(rows) for rows in plan.rows])
        for rows in plan.rows:
            stop = rows.start + rows.num_rows
            rows.session.num_computed_tokens = stop
            if rows.num_logits:
                own, logits = logits[: rows.num_logits], logits[rows.num_logits :]
                text, _ = self.expected[rows.session.session_id]
                assert torch.equal(own, self.tree.logits[text][stop - rows.num_logits : stop])
                self.counts["rows"] += rows.num_logits
                self.counts["jobs"] += 1
                rows.session.job = None
                if self.choose.random() < 0.5:  # the draft, if there was one, stands
                    self._commit(rows.session, len(rows.session.tokens))
        assert len(logits) == 0
        self.cache.publish([rows.session for rows in plan.rows])
        self.counts["several"] += len(plan.rows) > 1
        return True

    # --- what they are made of -----------------------------------------------------------------

    def _new_open(self) -> Open:
        self._num_named += 1
        name = f"s{self._num_named}"
        salt = self.choose.choice(["", "", "pepper"])
        return Open(
            session_id=name,
            epoch=1,
            sampling=Sampling(),
            eos_ids=[],
            prompt_len=0,
            cache_salt=salt,
            adapter=self.choose.choice(["", "", "lora"]),
        )

    def _pick(self, *, is_idle: bool = False) -> Session | None:
        candidates = [s for s in self.sessions if not (is_idle and s.job is not None)]
        return self.choose.choice(candidates) if candidates else None

    def _rewrite(self, session: Session, text: int, base_len: int, num_more: int) -> None:
        """Make the log `base_len` tokens and up to `num_more` of `text`; ask for logits."""
        added = self.tree.texts[text][base_len : base_len + num_more]
        session.rewrite(base_len, added)
        length = base_len + len(added)
        self.expected[session.session_id] = (text, length)
        session.job = None
        # What is behind it is a draft.
        self._commit(session, self.choose.choice([length, self.choose.randint(base_len, length)]))
        if added:
            most = min(length, self.planner.max_logits)
            num_logits = self.choose.choice(
                [1, min(len(added), most), self.choose.randint(1, most)]
            )
            session.job = Job(0, self.choose.random(), num_logits, 0)

    def _commit(self, session: Session, length: int) -> None:
        session.committed_len = length
        text, _ = self.expected[session.session_id]
        log, salt = self.tree.hashes[text], session.opened.salt
        self.committed |= {(salt, log.hash_at(stop)) for stop in range(1, length + 1)}

    def _close_session(self, session: Session) -> None:
        self.sessions.close(session.session_id)
        del self.expected[session.session_id]

    def _note_own_blocks(self, before: dict[str, list[int]], rows: list[PlannedRows]) -> None:
        """Count the blocks that were exchanged for a session's own, or for those of others."""
        for planned in rows:
            old, new = before[planned.session.session_id], planned.session.table.block_ids
            self.counts["given up"] += sum(a != b for a, b in zip(old, new, strict=False))

    def _check(self) -> None:
        tables = [session.table for session in self.sessions]
        self.pool.check(tables)
        self.cache.published.check(tables)
        assert self.cache.published.by_key.keys() <= self.committed
        assert {session.session_id for session in self.sessions} == self.expected.keys()
        for session in self.sessions:
            text, length = self.expected[session.session_id]
            log = session.tokens
            assert log.ids == self.tree.texts[text][:length]
            assert log.hash_at(len(log)) == self.tree.hashes[text].hash_at(length)
            assert 0 <= session.num_computed_tokens <= min(length, session.table.num_tokens)
        self.counts["full"] += self.pool.num_free < 4
        self._poison()

    def _poison(self) -> None:
        """NaN into every block that has become free and is not kept."""
        used = {block for session in self.sessions for block in session.table.block_ids}
        unused = {b for b in range(NUM_BLOCKS) if b not in used and not self.pool.is_kept(b)}
        fresh = sorted(unused - self._unused)
        self._unused = unused
        index = torch.tensor(fresh, dtype=torch.long)
        for layer in own_storage(self.runner).blocks:
            for part in layer:  # keys, values: [blocks, K, BLOCK_SIZE, D]
                part.index_fill_(0, index, float("nan"))


def _sequence(rows: PlannedRows) -> SequenceRows:
    token_ids = rows.session.tokens.ids[rows.start : rows.start + rows.num_rows]
    return SequenceRows(rows.session.table, rows.start, token_ids, rows.num_logits)


def fork(pool: BlockPool, table: BlockTable, num_tokens: int) -> BlockTable:
    """A new table with the whole blocks within the first `num_tokens` tokens of `table`.

    So have sessions tables that found the same prefix in the cache.
    """
    forked = pool.new_table()
    forked.adopt(0, table.block_ids[: num_tokens // pool.block_size])
    return forked
