from __future__ import annotations

import asyncio

import pytest

from models.protocol.errors import InvalidRequest, Overloaded
from router.planning.rollout_places import RolloutPlaces

pytestmark = pytest.mark.virtual_time


async def hold(places: RolloutPlaces, num_places: int, seconds: float, log: list[str]) -> None:
    async with places.held(num_places, 10.0):
        log.append(f"+{num_places}")
        await asyncio.sleep(seconds)
    log.append(f"-{num_places}")


async def test_places_are_taken_together_and_in_turn() -> None:
    places, log = RolloutPlaces(4), list[str]()
    await asyncio.gather(
        hold(places, 3, 2.0, log), hold(places, 4, 1.0, log), hold(places, 1, 1.0, log)
    )
    # The last would have room beside the first; but it came after one that waits for all.
    assert log == ["+3", "-3", "+4", "-4", "+1", "-1"]


async def test_a_wait_has_a_limit_and_leaves_nothing_taken() -> None:
    places, log = RolloutPlaces(4), list[str]()
    holding = asyncio.create_task(hold(places, 2, 60.0, log))
    await asyncio.sleep(1.0)
    with pytest.raises(Overloaded, match=r"within 5 s, 4 may run at once \(router\.max_rollouts\)"):
        async with places.held(3, 5.0):
            pass
    async with places.held(2, 5.0):
        log.append("beside")
    await holding
    assert log == ["+2", "beside", "-2"]


async def test_places_come_back_when_the_block_fails() -> None:
    places = RolloutPlaces(2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with places.held(2, 1.0):
                raise ZeroDivisionError


async def test_more_than_there_are_is_the_clients_error() -> None:
    with pytest.raises(InvalidRequest, match="candidates: at most 2 are allowed here"):
        async with RolloutPlaces(2).held(3, 1.0):
            pass
