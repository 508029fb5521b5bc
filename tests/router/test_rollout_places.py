from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from models.protocol.errors import InvalidRequest, Overloaded
from router.drafters.draft_model import DRAFT_MODEL
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.costs import PassCosts
from router.rollout_places import RolloutPlaces
from tests.router.replies import proposal

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


def planner_of(base_ms: float = 10.0, row_ms: float = 1.0, most: int = 64) -> RouterPlanner:
    costs = PassCosts()
    for turn in range(9):
        for num_rows in range(1, most + 1):
            costs.observe_pass(num_rows, base_ms + row_ms * num_rows + 1e-6 * turn)
    return RouterPlanner(costs)


@asynccontextmanager
async def streams(places: RolloutPlaces, number: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(number):
            await stack.enter_async_context(places.beside())
        yield


async def test_rows_are_as_many_as_streams_put_up_with() -> None:
    places, planner = RolloutPlaces(32, max_slowdown=1.5), planner_of()
    assert places.max_rows(planner) == math.inf  # nobody is there whose pace counts
    async with streams(places, 4):
        assert places.max_rows(planner) == 7  # 14 ms alone, 21 ms with 11 rows
        assert RolloutPlaces(32).max_rows(RouterPlanner(PassCosts())) == math.inf
        # Rows that cost nothing are free, rows that cost as much as a pass are not to be had.
        assert places.max_rows(planner_of(10.0, 0.0)) > 1000
        assert places.max_rows(planner_of(0.0, 10.0)) == 2
    async with streams(places, 8):
        assert places.max_rows(planner) in (8, 9)  # sizes are measured in cells
    assert places.max_rows(planner) == math.inf


async def test_more_rows_than_were_tried_are_tried() -> None:
    places = RolloutPlaces(32, max_slowdown=2.0)
    async with places.beside():
        assert places.max_rows(planner_of(10.0, 0.1, most=2)) > 50


async def test_rows_of_drafts_count_with_their_streams() -> None:
    places, planner = RolloutPlaces(32, max_slowdown=1.5), planner_of(10.0, 0.1)
    planner.costs.observe_draft(DRAFT_MODEL.traits, proposal(1, 0.1))
    estimate = AcceptanceEstimate(AcceptancePool(0.9))
    session = PlannedSession(
        planner, {DRAFT_MODEL.name: estimate}, lambda: "target", max_length=8, run_on=1
    )
    async with places.beside():
        before = places.max_rows(planner)
        k = session.plan(DRAFT_MODEL.traits, 8).num_draft_tokens
        assert k > 1
        assert planner.num_draft_rows == k
        # Half of a longer pass is more, by half of what the draft adds to it.
        assert places.max_rows(planner) == before + k // 2


async def test_a_look_ahead_waits_for_its_rows_while_streams_run() -> None:
    places, planner, log = RolloutPlaces(32, max_slowdown=1.5), planner_of(), list[str]()

    async def look_ahead(name: str, num_rows: int, seconds: float) -> None:
        async with places.rows(num_rows, planner, 60.0):
            log.append(f"+{name}")
            await asyncio.sleep(seconds)
        log.append(f"-{name}")

    async def stream(seconds: float) -> None:
        async with streams(places, 4):  # which leave 7 rows
            await asyncio.sleep(seconds)
        log.append("streams end")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream(5.5))
        await asyncio.sleep(0)
        for name, num_rows, seconds in (
            ("many", 9, 1.0),  # more than there are, and nobody else has any
            ("five", 5, 1.0),
            ("two", 2, 2.0),
            ("four", 4, 10.0),
            ("eight", 8, 1.0),  # has no room beside it while streams run
        ):
            tasks.create_task(look_ahead(name, num_rows, seconds))
    assert log == [
        *("+many", "-many", "+five", "+two", "-five", "+four", "-two"),
        *("streams end", "+eight", "-eight", "-four"),
    ]


async def test_rows_that_do_not_come_free_are_refused() -> None:
    places, planner = RolloutPlaces(32, max_slowdown=1.5), planner_of()
    async with places.beside(), places.rows(5, planner, 1.0):
        with pytest.raises(Overloaded, match=r"beside 1 streams within 3 s \(router\.max_rollout_"):
            async with places.rows(1, planner, 3.0):
                pass
        with pytest.raises(TimeoutError, match="of the block"):
            async with RolloutPlaces(1).rows(1, planner, 3.0):
                raise TimeoutError("of the block")
