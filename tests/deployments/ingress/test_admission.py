"""Bounds on running and waiting sessions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext
from typing import Any

import pytest

from deployments.api.choices import ChoiceItems
from deployments.api.keys import Tenant
from deployments.api.observer import ChoiceObserver
from deployments.api.running import run_choice
from deployments.ingress.admission import AdmissionControl
from models.protocol.errors import Overloaded
from models.protocol.messages import Sampling
from router.types import Finished, GenerationRequest
from tests.fakes.clock import Clock
from tests.fakes.http import ScriptedGenerator, tiny_tokenizer

pytestmark = pytest.mark.virtual_time

REQUEST = GenerationRequest(
    request_id="r", prompt_ids=(1,), sampling=Sampling(), eos_ids=(), max_tokens=3
)
DETOKENIZER = tiny_tokenizer().detokenizer()


class Door(AdmissionControl):
    """Sessions of a scripted generator through one admission, as the routes run them."""

    def __init__(self, generator: ScriptedGenerator, **options: Any) -> None:
        super().__init__(**options)
        self._generator = generator

    def generate(self) -> ChoiceItems:
        return run_choice(
            0,
            self._generator.generate(REQUEST, DETOKENIZER),
            turn=nullcontext(),
            slot=self.slot(),
            observer=ChoiceObserver(0, ()),
            grammar_fields=(),
        )


async def run(door: Door) -> int:
    async with aclosing(door.generate()) as items:
        return len([item async for _, item in items if isinstance(item, Finished)])


def admitting(
    generator: ScriptedGenerator, *, max_queued: int = 1, queue_wait_s: float = 5.0, **options: Any
) -> Door:
    return Door(
        generator, max_sessions=2, max_queued=max_queued, queue_wait_s=queue_wait_s, **options
    )


async def settle() -> None:
    """Let every task come to its next wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def run_for(door: Door, clock: Clock, seconds: float) -> None:
    """One session that takes as long as that."""
    async with aclosing(door.generate()) as items:
        async for _ in items:
            clock.now_s += seconds
            seconds = 0.0


async def test_all_finish_while_the_queue_is_long_enough():
    door = admitting(ScriptedGenerator(delay_s=0.005), max_queued=10)
    assert await asyncio.gather(*(run(door) for _ in range(12))) == [1] * 12
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_a_full_queue_is_told_at_once():
    door = admitting(ScriptedGenerator(hang_at=0))
    running = [asyncio.create_task(run(door)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert (door.num_running, door.num_queued) == (2, 1)
    with pytest.raises(Overloaded, match="2 sessions are running and 1 are waiting"):
        await run(door)
    await ended(running)
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_what_a_newcomer_would_be_told_is_known_beforehand():
    door = admitting(ScriptedGenerator(hang_at=0))
    running = []
    for _ in range(3):
        door.refuse_when_full()
        running += await started(door, 1)
    with pytest.raises(Overloaded, match="2 sessions are running and 1 are waiting"):
        door.refuse_when_full()
    assert (door.num_running, door.num_queued) == (2, 1)
    await ended(running)
    door.refuse_when_full()


async def test_waiting_has_a_limit():
    generator = ScriptedGenerator(hang_at=0)
    door = admitting(generator, queue_wait_s=0.02)
    running = [asyncio.create_task(run(door)) for _ in range(2)]
    await asyncio.sleep(0.005)
    with pytest.raises(Overloaded, match=r"within 0\.02 s"):
        await run(door)
    await ended(running)
    generator.hang_at = None
    assert await run(door) == 1


async def test_a_failure_gives_its_place_back():
    door = admitting(ScriptedGenerator(error=Overloaded("inside")))
    for _ in range(5):
        with pytest.raises(Overloaded, match="inside"):
            await run(door)
    assert (door.num_running, door.num_queued) == (0, 0)


async def started(door: Door, number: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(run(door)) for _ in range(number)]
    await asyncio.sleep(0.01)
    return tasks


async def ended(tasks: list[asyncio.Task[int]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_more_places_are_taken_by_those_who_wait():
    door = admitting(ScriptedGenerator(hang_at=0), max_queued=9)
    tasks = await started(door, 6)
    assert (door.num_running, door.num_queued) == (2, 4)
    door.set_limits(max_sessions=5, max_queued=9, queue_wait_s=5.0, reserved=0)
    await asyncio.sleep(0.01)
    assert (door.num_running, door.num_queued) == (5, 1)
    await ended(tasks)
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_fewer_places_end_nobody_and_admit_nobody():
    generator = ScriptedGenerator(hang_at=0)
    door = admitting(generator, max_queued=1)
    door.set_limits(max_sessions=4, max_queued=1, queue_wait_s=5.0, reserved=0)
    tasks = await started(door, 4)
    door.set_limits(max_sessions=1, max_queued=1, queue_wait_s=0.02, reserved=0)
    assert door.num_running == 4
    await ended(tasks[:3])
    with pytest.raises(Overloaded, match="1 sessions are running"):  # one still has the only place
        await run(door)
    await ended(tasks)
    rest = await started(door, 1)
    assert door.num_running == 1
    with pytest.raises(Overloaded, match=r"within 0\.02 s"):
        await run(door)
    await ended(rest)


async def test_free_places_go_at_once_and_come_back():
    door = admitting(ScriptedGenerator(hang_at=0), max_queued=0)
    for number in (1, 3, 2):
        door.set_limits(max_sessions=number, max_queued=0, queue_wait_s=5.0, reserved=0)
        tasks = await started(door, number)
        assert door.num_running == number
        with pytest.raises(Overloaded, match=f"{number} sessions are running"):
            await run(door)
        await ended(tasks)


async def test_who_would_wait_in_vain_is_told_at_once_and_when_to_come_back():
    clock = Clock()
    generator = ScriptedGenerator()
    door = admitting(generator, max_queued=10, queue_wait_s=30.0, clock=clock)
    await run_for(door, clock, 10.0)  # two places: one is free every 5 s
    generator.hang_at = 0
    running = [asyncio.create_task(run(door)) for _ in range(5)]
    await settle()
    # The third that waits expects 15 s, half the longest wait; a fourth would expect 20 s.
    assert (door.num_running, door.num_queued) == (2, 3)
    with pytest.raises(Overloaded, match=r"expected in 20\.0 s, the limit is 15 s") as refusal:
        await run(door)
    assert refusal.value.retry_after_s == 20.0
    await ended(running)
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_one_may_always_wait_and_the_estimate_follows_the_sessions():
    clock = Clock()
    generator = ScriptedGenerator()
    door = admitting(generator, max_queued=10, queue_wait_s=30.0, clock=clock)
    await run_for(door, clock, 1000.0)
    generator.hang_at = 0
    running = [asyncio.create_task(run(door)) for _ in range(3)]
    await settle()
    assert (door.num_running, door.num_queued) == (2, 1)  # however slow the last session was
    with pytest.raises(Overloaded, match="expected in"):
        await run(door)
    await ended(running)
    generator.hang_at = None
    for _ in range(30):
        await run_for(door, clock, 1.0)
    generator.hang_at = 0
    running = [asyncio.create_task(run(door)) for _ in range(12)]
    await settle()
    assert (door.num_running, door.num_queued) == (2, 10)
    with pytest.raises(Overloaded, match="10 are waiting, the limit is 10"):
        await run(door)
    await ended(running)


async def test_before_any_session_has_ended_only_the_length_of_the_queue_counts():
    door = admitting(ScriptedGenerator(hang_at=0), max_queued=3, queue_wait_s=0.5)
    running = [asyncio.create_task(run(door)) for _ in range(5)]
    await settle()
    assert (door.num_running, door.num_queued) == (2, 3)
    await ended(running)


# --- clients ----------------------------------------------------------------------------------


GREEDY, MODEST = Tenant(name="greedy"), Tenant(name="modest")


class Places:
    """Sessions that run until they are ended, in the order in which they began."""

    def __init__(self, **options: Any) -> None:
        self.door = AdmissionControl(**({"max_queued": 10, "queue_wait_s": 5.0} | options))
        self.begun: list[str] = []
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, tenant: Tenant, number: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._run(tenant)) for _ in range(number)]
        self.tasks += tasks
        await settle()
        return tasks

    async def end(self, index: int) -> None:
        self.ends[index].set()
        await settle()

    async def end_all(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.door.num_running, self.door.num_queued) == (0, 0)

    async def _run(self, tenant: Tenant) -> None:
        async with self.door.slot(tenant):
            self.begun.append(tenant.name)
            self.ends.append(end := asyncio.Event())
            await end.wait()


async def test_clients_take_turns():
    places = Places(max_sessions=2)
    await places.come(GREEDY, 6)
    await places.come(MODEST, 2)
    for index in range(6):
        await places.end(index)
    assert places.begun == ["greedy"] * 3 + ["modest", "greedy", "modest", "greedy", "greedy"]
    await places.end_all()


async def test_a_client_at_its_limit_waits_alone():
    limited = Tenant(name="limited", max_sessions=1)
    places = Places(max_sessions=3)
    await places.come(limited, 3)
    assert (places.door.num_running, places.door.num_queued) == (1, 2)
    await places.come(MODEST, 2)
    assert places.begun == ["limited", "modest", "modest"]
    await places.end(1)
    assert places.door.num_running == 2  # a place is free, and not for the limited
    await places.end(0)
    assert places.begun[3:] == ["limited"]
    await places.end_all()


async def test_who_has_half_leaves_the_last_places_to_others():
    places = Places(max_sessions=6, max_queued=4, reserved=2)
    await places.come(GREEDY, 8)
    with pytest.raises(Overloaded, match="4 of 6 sessions are of greedy, the last 2 places are"):
        places.door.refuse_when_full(GREEDY)
    assert (places.door.num_running, places.door.num_queued) == (4, 4)
    await places.come(MODEST, 2)
    assert places.begun == ["greedy"] * 4 + ["modest"] * 2
    await places.end(4)
    assert places.door.num_running == 5  # a place is free, and kept for others
    await places.end(0)
    assert places.begun[6:] == []  # two are free now, and both are kept
    await places.end(1)
    assert places.begun[6:] == ["greedy"]  # with less than half it may have any
    places.door.set_limits(max_sessions=6, max_queued=10, queue_wait_s=5.0, reserved=0)
    await settle()
    assert places.begun[6:] == ["greedy"] * 3
    await places.end_all()


async def test_a_client_with_less_than_an_even_share_goes_first():
    other = Tenant(name="other")
    places = Places(max_sessions=8)
    assert not places.door.goes_first(MODEST)  # nobody runs
    await places.come(GREEDY, 4)
    assert (places.door.goes_first(GREEDY), places.door.goes_first(MODEST)) == (False, True)
    await places.come(MODEST, 1)
    assert (places.door.goes_first(GREEDY), places.door.goes_first(MODEST)) == (False, True)
    await places.come(MODEST, 1)
    await places.come(other, 1)  # 4, 2 and 1 of 7
    assert [places.door.goes_first(one) for one in (GREEDY, MODEST, other)] == [False, True, True]
    await places.end(0)
    await places.end(1)  # 2, 2 and 1 of 5
    assert [places.door.goes_first(one) for one in (GREEDY, MODEST, other)] == [False, False, True]
    await places.end_all()


async def test_who_has_half_expects_the_wait_for_the_places_that_it_may_get():
    clock = Clock()
    places = Places(max_sessions=2, queue_wait_s=30.0, reserved=1, clock=clock)
    await places.come(GREEDY)
    clock.now_s += 10.0
    await places.end(0)
    await places.come(GREEDY, 2)
    with pytest.raises(Overloaded, match=r"expected in 20\.0 s"):
        places.door.refuse_when_full(GREEDY)
    await places.end_all()


async def test_a_full_queue_is_shared():
    places = Places(max_sessions=1, max_queued=3)
    [_, *waiting] = await places.come(GREEDY, 4)
    with pytest.raises(Overloaded, match="3 are waiting, the limit is 3"):
        places.door.refuse_when_full(GREEDY)
    places.door.refuse_when_full(MODEST)
    await places.come(MODEST)
    with pytest.raises(Overloaded, match="the limit is 3, which clients share"):
        await waiting[-1]
    assert (places.door.num_running, places.door.num_queued) == (1, 3)
    with pytest.raises(Overloaded):  # two and one: another would only turn it round
        places.door.refuse_when_full(MODEST)
    await places.end(0)
    assert places.begun == ["greedy", "greedy"]
    await places.end(1)
    assert places.begun[2] == "modest"
    await places.end_all()


async def test_a_newcomer_expects_the_wait_of_its_own_turn():
    clock = Clock()
    places = Places(max_sessions=1, max_queued=20, queue_wait_s=30.0, clock=clock)
    await places.come(GREEDY)
    clock.now_s += 10.0
    await places.end(0)
    await places.come(GREEDY, 2)
    with pytest.raises(Overloaded, match=r"expected in 20\.0 s") as refusal:
        places.door.refuse_when_full(GREEDY)
    assert refusal.value.retry_after_s == 20.0
    places.door.refuse_when_full(MODEST)
    await places.end_all()


async def test_a_place_that_was_given_to_someone_who_left_goes_on():
    places = Places(max_sessions=1)
    await places.come(GREEDY)
    [leaver] = await places.come(MODEST)
    await places.come(GREEDY)
    places.ends[0].set()
    places.door.set_limits(max_sessions=2, max_queued=10, queue_wait_s=5.0, reserved=0)
    leaver.cancel()  # a place was just given to it, and it has not run since
    await settle()
    assert places.begun == ["greedy", "greedy"]
    assert places.door.num_running == 1
    await places.end_all()
