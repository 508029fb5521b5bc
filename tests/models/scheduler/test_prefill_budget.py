"""How much prompts slow running streams: the real planner, sessions and blocks, simulated time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from models.costs.pass_times import PassTimes
from models.kv.block_pool import BlockPool
from models.protocol.messages import Sampling
from models.scheduler.batch import PassPlanner
from models.scheduler.prefill_budget import PrefillBudget
from models.scheduler.sessions import Job, Session, SessionTable
from tests.cases.messages import EPOCH, opening

Cost = Callable[[int], float]  # of the rows of a pass
ContextCost = Callable[[int, int], float]  # of the rows of a prompt's chunk, and the keys they see


def cpu(num_rows: int) -> float:
    """Seconds as on a CPU: a row more is cheap only up to a few."""
    return 0.020 + 0.0012 * num_rows


def long_contexts_on_a_cpu(num_rows: int, num_keys: int) -> float:
    """As measured: keys are read once for 16 rows, and each row takes its time with each key."""
    return num_keys * (8e-6 * math.ceil(num_rows / 16) + 1.1e-6 * min(num_rows, 16))


def gpu(num_rows: int) -> float:
    """Seconds as on a GPU: flat for long, then in proportion."""
    return 0.010 * max(1.0, num_rows / 200)


@dataclass
class Stream:
    """A running stream: its next message comes `away_s` after each answer."""

    session: Session
    away_s: float
    num_rows: int  # of each of its messages
    back_s: float = 0.0
    answered_s: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.answered_s, self.answered_s[1:], strict=False)]


class World:
    """An engine whose passes take `cost(rows)` seconds; messages are taken between passes.

    And for each chunk of a prompt, `context_cost` of its rows and the keys they see.
    """

    def __init__(
        self,
        cost: Cost,
        *,
        context_cost: ContextCost = lambda num_rows, num_keys: 0.0,
        slowdown: float = 2.0,
        max_rows: int = 512,
        noise: float = 0.0,
    ) -> None:
        self.now = 0.0
        self._cost = cost
        self._context_cost = context_cost
        self._noise = noise
        self._random = random.Random(0)
        pool = BlockPool(4096, 16)
        self.table = SessionTable(EPOCH, pool.new_table)
        self._times = PassTimes()
        self.planner = PassPlanner(pool, max_rows, PrefillBudget(slowdown, self._times))
        self.streams: list[Stream] = []
        self.passes: list[tuple[int, int]] = []  # rows, prompt rows
        self.prompt_done_s: dict[str, float] = {}

    def session(self, length: int) -> Session:
        name = f"s{len(self.table)}"
        session = self.table.open(opening(name, Sampling(), length), self.now)
        assert session is not None
        session.rewrite(0, list(range(length)))
        return session

    def stream(self, *, away_s: float = 0.0, num_rows: int = 1) -> Stream:
        """One that has just been answered for the first time; its prompt was computed alone."""
        session = self.session(40)
        session.reserve_rows(0)
        session.num_computed_tokens = 40
        session.last_active_s = self.now
        self._times.note(40, self._cost(40), self.now)
        stream = Stream(session, away_s, num_rows, self.now + away_s)
        self.streams.append(stream)
        return stream

    def prompt(self, length: int) -> Session:
        session = self.session(length)
        session.job = Job(0, self.now, 1, 0)
        return session

    def step(self) -> None:
        for stream in self.streams:
            session = stream.session
            if session.job is None and stream.back_s <= self.now:
                session.away_s = self.now - session.last_active_s
                session.rewrite(len(session.tokens), [0] * stream.num_rows)
                session.job = Job(0, self.now, stream.num_rows, 0)
        waiting = [s for s in self.table if s.job is not None]
        plan = self.planner.plan(waiting, self.table, self.now)
        assert not plan.starved
        if not plan.rows:
            self.now = min(stream.back_s for stream in self.streams)
            return
        num_rows = sum(rows.num_rows for rows in plan.rows)
        num_prompt_rows = sum(rows.num_rows for rows in plan.rows if rows.is_prompt)
        duration_s = self._cost(num_rows) + sum(
            self._context_cost(rows.num_rows, rows.start + rows.num_rows)
            for rows in plan.rows
            if rows.is_prompt
        )
        duration_s *= 1 + self._noise * self._random.random()
        if self._noise and self._random.random() < 0.05:
            duration_s *= 5
        self.now += duration_s
        self.passes.append((num_rows, num_prompt_rows))
        for rows in plan.rows:
            rows.session.num_computed_tokens = rows.start + rows.num_rows
            rows.job.end_pass(duration_s, rows.num_rows, num_rows, len(plan.rows))
            if rows.num_logits:
                self._answer(rows.session)
        self._times.note(num_rows, duration_s, self.now)
        self.planner.note_pass(plan.rows, duration_s)

    def _answer(self, session: Session) -> None:
        session.job = None
        session.last_active_s = self.now
        for stream in self.streams:
            if stream.session is session:
                stream.answered_s.append(self.now)
                stream.back_s = self.now + stream.away_s
                if stream.away_s == 0.0:  # a run-on: its job goes on
                    session.rewrite(len(session.tokens), [0])
                    session.job = Job(0, self.now, 1, 0)
                    session.job.num_rows = 1
                return
        self.prompt_done_s[session.session_id] = self.now
        self.table.close(session.session_id)

    def run_until_prompts_are_done(self, *, max_passes: int = 3000) -> None:
        for _ in range(max_passes):
            if len(self.table) == len(self.streams):
                return
            self.step()
        raise AssertionError(f"a prompt is not computed after {max_passes} passes")


def warmed(world: World, num_passes: int = 30) -> float:
    """Longest gap of the streams after some passes without prompts."""
    for _ in range(num_passes):
        world.step()
    longest = max(gap for stream in world.streams for gap in stream.gaps)
    world.passes.clear()
    for stream in world.streams:
        del stream.answered_s[:-1]
    return longest


@pytest.mark.parametrize("cost", [cpu, gpu])
@pytest.mark.parametrize("num_streams", [1, 4, 24])
def test_a_long_prompt_at_most_doubles_the_gaps_of_running_streams(
    cost: Cost, num_streams: int
) -> None:
    world = World(cost)
    for _ in range(num_streams):
        world.stream()
    alone_s = warmed(world)
    world.prompt(2000)
    world.run_until_prompts_are_done()
    gaps = [gap for stream in world.streams for gap in stream.gaps]
    floor_s = cost(num_streams + 8)  # the least a pass with a prompt may cost
    assert max(gaps) <= max(2 * alone_s, floor_s) * 1.01
    assert max(gaps) > 1.3 * alone_s  # nor was the prompt held back for nothing


@pytest.mark.parametrize("away_s", [0.003, 0.015, 0.1, 0.5])
def test_streams_whose_drafts_are_made_elsewhere_are_not_forgotten(away_s: float) -> None:
    """While a stream drafts, no row of it waits here; its next verify must not find a long pass."""
    world = World(cpu)
    stream = world.stream(away_s=away_s, num_rows=5)
    alone_s = warmed(world)
    world.prompt(2000)
    world.run_until_prompts_are_done()
    floor_s = cpu(8) + cpu(5) + away_s
    assert max(stream.gaps) <= max(2 * alone_s, floor_s) * 1.01


def test_a_stream_that_is_kept_elsewhere_does_not_make_room_for_prompts_here() -> None:
    """The other engine is busy with a prompt; the stream was away for 60 ms before and is now 1 s.

    Were the whole second to count, this engine would let the stream wait for as long again.
    """
    world = World(cpu)
    stream = world.stream(away_s=0.06, num_rows=5)
    warmed(world)
    world.step()
    stream.back_s = world.now + 1.0
    world.prompt(100_000 // 4)
    while world.now < stream.back_s:
        world.step()
    usual_gap_s = 0.06 + cpu(1)
    assert all(cpu(rows) <= usual_gap_s * 1.01 for rows, _ in world.passes[1:])
    assert sum(rows for _, rows in world.passes) > 8 * len(world.passes)


def test_streams_that_come_back_are_no_prompts() -> None:
    """They are silent until their rows are there, as after the loss of another target."""
    world = World(cpu)
    for _ in range(4):
        world.stream()
    warmed(world)
    world.prompt(2000)
    for _ in range(3):
        world.prompt(400).is_past_prompt = True
    for _ in range(3):
        world.step()
    back = ["s5", "s6", "s7"]
    assert list(world.prompt_done_s) == back, "in three passes, and before the prompt"
    world.run_until_prompts_are_done()


def test_with_nobody_running_a_prompt_gets_whole_passes() -> None:
    world = World(cpu)
    world.prompt(2000)
    world.prompt(700)
    world.run_until_prompts_are_done()
    assert [rows for rows, _ in world.passes] == [512] * 5 + [2700 - 5 * 512]


def test_prompts_come_one_after_the_other_in_the_order_of_their_arrival() -> None:
    world = World(cpu)
    world.stream()
    warmed(world)
    for _ in range(4):
        world.prompt(300)
    world.run_until_prompts_are_done()
    done = list(world.prompt_done_s)
    assert done == sorted(done, key=lambda name: int(name[1:]))


@pytest.mark.parametrize("max_rows", [2, 8, 24, 64, 512])
@pytest.mark.parametrize("slowdown", [1.01, 2.0])
def test_a_prompt_is_never_starved(max_rows: int, slowdown: float) -> None:
    """Of two passes one holds 8 prompt rows, or the quarter of all rows if that is less."""
    world = World(cpu, slowdown=slowdown, max_rows=max_rows)
    for _ in range(200 if max_rows < 512 else 40):
        world.stream()
    for _ in range(400):
        world.step()
    world.passes.clear()
    world.prompt(200)
    world.run_until_prompts_are_done(max_passes=1000)
    least = min(8, max(1, max_rows // 4))
    pairs = zip(world.passes[:-2], world.passes[1:-1], strict=True)
    assert all(max(a, b) >= least for (_, a), (_, b) in pairs)


@pytest.mark.parametrize(
    ("context_cost", "least_rows"), [(lambda rows, keys: 0.0, 8), (long_contexts_on_a_cpu, 4)]
)
def test_neither_noise_nor_long_contexts_undo_it(
    context_cost: ContextCost, least_rows: int
) -> None:
    """Passes vary by a half and one in twenty takes five times as long."""
    world = World(cpu, context_cost=context_cost, noise=0.5)
    stream = world.stream()
    for _ in range(60):
        world.step()
    alone_s = sorted(stream.gaps)[30]
    del stream.answered_s[:-1]
    world.prompt(2000)
    world.run_until_prompts_are_done()
    gaps = sorted(stream.gaps)
    assert gaps[len(gaps) // 2] <= 1.9 * alone_s
    assert sum(rows for _, rows in world.passes) / len(world.passes) > least_rows


def test_the_price_of_a_pass_without_prompts_is_kept_up_to_date() -> None:
    """The machine becomes four times as slow in the middle of many prompts."""
    factor = [1.0]
    world = World(lambda num_rows: factor[0] * cpu(num_rows))
    world.stream()
    warmed(world)
    world.prompt(100_000 // 4)
    for _ in range(50):
        world.step()
    usual = max(rows for _, rows in world.passes)
    factor[0] = 4.0
    for _ in range(600):
        world.step()
    assert sum(rows == 0 for _, rows in world.passes) >= 600 // 33 - 1
    assert max(rows for _, rows in world.passes[-20:]) == pytest.approx(usual, abs=3)


def test_who_comes_after_a_pass_has_waited_for_none_of_its_prompts() -> None:
    times = PassTimes()
    budget = PrefillBudget(2.0, times)
    for _ in range(9):
        times.note(4, cpu(4), 1.0)
        budget.note_pass(4, 0, cpu(4))
    times.note(4 + 16, cpu(20), 2.0)
    budget.note_pass(4 + 16, 16, cpu(20))
    assert budget.beside([Job(1, 2.001, 4, 0)], 4) == 0  # it may have come during the pass
    assert budget.beside([Job(1, 2.010, 4, 0)], 4) >= 16
