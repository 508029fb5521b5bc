"""Bounds on running and waiting sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.api.keys import ANYBODY, Tenant
from deployments.ingress.admission import AdmissionControl
from models.protocol.errors import Overloaded
from tests.fakes.clock import Clock

pytestmark = pytest.mark.virtual_time


async def settle() -> None:
    """Let every task come to its next wait."""
    for _ in range(20):
        await asyncio.sleep(0)


class Places:
    """Sessions that run until they are ended, in the order in which they began."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        usual: dict[str, Any] = {
            "max_sessions": 2,
            "max_queued": 10,
            "queue_wait_s": 5.0,
            "clock": self.clock,
        }
        self.door = AdmissionControl(**(usual | options))
        self.begun: list[str] = []
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def load(self) -> tuple[int, int]:
        """Numbers of those that run and of those that wait."""
        return self.door.num_running, self.door.num_queued

    def limit(self, **limits: Any) -> None:
        usual = {"max_queued": 10, "queue_wait_s": 5.0, "reserved": 0}
        self.door.set_limits(**(usual | limits))

    async def stay(self, tenant: Tenant = ANYBODY) -> None:
        """Wait for a place and for its end."""
        async with self.door.slot(tenant):
            self.begun.append(tenant.name)
            self.ends.append(end := asyncio.Event())
            await end.wait()

    async def last(self, seconds: float) -> None:
        """Begin a session that takes so long, and end it."""
        async with self.door.slot():
            self.clock.now_s += seconds

    async def come(self, tenant: Tenant = ANYBODY, number: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.stay(tenant)) for _ in range(number)]
        self.tasks += tasks
        await settle()
        return tasks

    async def end(self, *indices: int) -> None:
        for index in indices:
            self.ends[index].set()
            await settle()

    async def end_all(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert self.load == (0, 0)


async def test_all_finish_while_the_queue_is_long_enough():
    places = Places()
    tasks = await places.come(number=12)
    assert places.load == (2, 10)
    await places.end(*range(12))
    assert await asyncio.gather(*tasks) == [None] * 12
    assert places.load == (0, 0)


async def test_a_full_queue_is_told_at_once_and_beforehand():
    places = Places(max_queued=1)
    for _ in range(3):
        places.door.refuse_when_full()
        await places.come()
    assert places.load == (2, 1)
    with pytest.raises(Overloaded, match="2 sessions are running and 1 are waiting"):
        await places.stay()
    with pytest.raises(Overloaded, match="2 sessions are running and 1 are waiting"):
        places.door.refuse_when_full()
    assert places.load == (2, 1)
    await places.end_all()
    places.door.refuse_when_full()


async def test_waiting_has_a_limit():
    places = Places(queue_wait_s=0.02)
    await places.come(number=2)
    with pytest.raises(Overloaded, match=r"within 0\.02 s"):
        await places.stay()
    await places.end_all()
    await places.come()
    assert places.load == (1, 0)
    await places.end_all()


async def test_a_check_of_a_grammar_tells_nothing_of_sessions():
    places = Places(max_sessions=1, queue_wait_s=20.0)
    async with places.door.slot():
        places.clock.now_s += 10
    for _ in range(50):
        async with places.door.slot(tells_length=False):
            pass
    await places.come(number=2)
    with pytest.raises(Overloaded, match=r"a place is expected in 20\.0 s"):
        places.door.refuse_when_full()
    await places.end_all()


async def test_a_failure_gives_its_place_back():
    places = Places()
    for _ in range(5):
        with pytest.raises(Overloaded, match="inside"):
            async with places.door.slot():
                raise Overloaded("inside")
    assert places.load == (0, 0)


async def test_more_places_are_taken_by_those_who_wait():
    places = Places()
    await places.come(number=6)
    assert places.load == (2, 4)
    places.limit(max_sessions=5)
    await settle()
    assert places.load == (5, 1)
    await places.end_all()


async def test_fewer_places_end_nobody_and_admit_nobody():
    places = Places(max_sessions=4)
    await places.come(number=4)
    places.limit(max_sessions=1, queue_wait_s=0.02)
    assert places.load == (4, 0)
    await places.end(0, 1, 2)
    with pytest.raises(Overloaded, match="1 sessions are running"):  # one still has the only place
        await places.stay()
    await places.end(3)
    await places.come()
    assert places.load == (1, 0)
    with pytest.raises(Overloaded, match=r"within 0\.02 s"):
        await places.stay()
    await places.end_all()


async def test_free_places_go_at_once_and_come_back():
    places = Places(max_queued=0)
    for number in (1, 3, 2):
        places.limit(max_sessions=number, max_queued=0)
        await places.come(number=number)
        assert places.load == (number, 0)
        with pytest.raises(Overloaded, match=f"{number} sessions are running"):
            await places.stay()
        await places.end_all()


async def test_who_would_wait_in_vain_is_told_at_once_and_when_to_come_back():
    places = Places(queue_wait_s=30.0)
    await places.last(10.0)  # two places: one is free every 5 s
    await places.come(number=5)
    # The third that waits expects 15 s, half the longest wait; a fourth would expect 20 s.
    assert places.load == (2, 3)
    with pytest.raises(Overloaded, match=r"expected in 20\.0 s, the limit is 15 s") as refusal:
        await places.stay()
    assert refusal.value.retry_after_s == 20.0
    await places.end_all()


async def test_one_may_always_wait_and_the_estimate_follows_the_sessions():
    places = Places(queue_wait_s=30.0)
    await places.last(1000.0)
    await places.come(number=3)
    assert places.load == (2, 1)  # however slow the last session was
    with pytest.raises(Overloaded, match="expected in"):
        await places.stay()
    await places.end_all()
    for _ in range(30):
        await places.last(1.0)
    await places.come(number=12)
    assert places.load == (2, 10)
    with pytest.raises(Overloaded, match="10 are waiting, the limit is 10"):
        await places.stay()
    await places.end_all()


async def test_before_any_session_has_ended_only_the_length_of_the_queue_counts():
    places = Places(max_queued=3, queue_wait_s=0.5)
    await places.come(number=5)
    assert places.load == (2, 3)
    await places.end_all()


# --- clients ----------------------------------------------------------------------------------


GREEDY, MODEST = Tenant(name="greedy"), Tenant(name="modest")


async def test_clients_take_turns():
    places = Places()
    await places.come(GREEDY, 6)
    await places.come(MODEST, 2)
    await places.end(*range(6))
    assert places.begun == ["greedy"] * 3 + ["modest", "greedy", "modest", "greedy", "greedy"]
    await places.end_all()


async def test_a_client_at_its_limit_waits_alone():
    limited = Tenant(name="limited", max_sessions=1)
    places = Places(max_sessions=3)
    await places.come(limited, 3)
    assert places.load == (1, 2)
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
    assert places.load == (4, 4)
    await places.come(MODEST, 2)
    assert places.begun == ["greedy"] * 4 + ["modest"] * 2
    await places.end(4)
    assert places.door.num_running == 5  # a place is free, and kept for others
    await places.end(0)
    assert places.begun[6:] == []  # two are free now, and both are kept
    await places.end(1)
    assert places.begun[6:] == ["greedy"]  # with less than half it may have any
    places.limit(max_sessions=6)
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
    places = Places(queue_wait_s=30.0, reserved=1)
    await places.last(10.0)
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
    assert places.load == (1, 3)
    with pytest.raises(Overloaded):  # two and one: another would only turn it round
        places.door.refuse_when_full(MODEST)
    await places.end(0)
    assert places.begun == ["greedy", "greedy"]
    await places.end(1)
    assert places.begun[2] == "modest"
    await places.end_all()


async def test_a_newcomer_expects_the_wait_of_its_own_turn():
    places = Places(max_sessions=1, queue_wait_s=30.0)
    await places.last(10.0)
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
    places.limit(max_sessions=2)
    leaver.cancel()  # a place was just given to it, and it has not run since
    await settle()
    assert places.begun == ["greedy", "greedy"]
    assert places.door.num_running == 1
    await places.end_all()
