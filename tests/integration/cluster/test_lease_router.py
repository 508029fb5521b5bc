"""Leases over real Serve: near what begins alike, with a replica stopped, with all places taken."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from ray import serve
from ray.exceptions import TaskCancelledError
from ray.serve.exceptions import RequestCancelledError

from deployments.serve.timed_names import full
from models.protocol.leases import LeaseRequest
from tests.harness.held_services import HeldService
from tests.harness.private_serve import applications

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("bare_serve"),
]

NUM_REPLICAS = 2
WAIT_S = 60.0  # Serve itself would replace a stopped replica after 90 s here: no help from there


@serve.deployment(
    num_replicas=NUM_REPLICAS,
    max_ongoing_requests=100,
    ray_actor_options={"num_cpus": 0.1},
    request_router_config={"request_router_class": "deployments.serve.lease_router:LeaseRouter"},
    health_check_period_s=10,
    health_check_timeout_s=30,
)
class Place:
    """Grants leases that name the process that holds them."""

    async def lease(self, asked: LeaseRequest | None = None) -> AsyncGenerator[int, None]:
        yield os.getpid()
        await asyncio.Event().wait()


@pytest.fixture(scope="module")
def handle(held: HeldService) -> Iterator[Any]:
    held.get("bare_serve")
    place: Any = Place
    with applications({"place": place.bind()}):
        yield serve.get_app_handle("place")


async def take(handle: Any, num_leases: int, key: str = "") -> list[int]:
    """Who granted so many leases asked for at once; they are given back together at the end."""
    asked = LeaseRequest(session_id="s", public_key="k", prefix_key=key)
    lease = handle.options(stream=True, method_name="lease")
    streams = [lease.remote(asked) for _ in range(num_leases)]
    async with asyncio.timeout(WAIT_S):
        holders = await asyncio.gather(*(anext(stream) for stream in streams))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(give_back(stream) for stream in streams))
    return holders


async def give_back(stream: Any) -> None:
    """End a lease and wait until its replica did; until then it counts in the replica's load."""
    stream.cancel()
    with contextlib.suppress(RequestCancelledError, TaskCancelledError):
        await anext(stream)


async def test_texts_that_begin_alike_are_leased_on_one_replica_while_it_is_no_fuller(
    handle: Any,
) -> None:
    # Serve gives a replica whose load it does not know a tenth of a second to tell it, then asks
    # another. The very first call to a process can take longer.
    async with asyncio.timeout(WAIT_S):
        while len(set(await take(handle, 20))) < NUM_REPLICAS:
            pass
    places = {}
    for key in (f"key {number}" for number in range(12)):
        [places[key]] = await take(handle, 1, key)
        assert await take(handle, 1, key) == [places[key]], key
    assert len(set(places.values())) == NUM_REPLICAS
    # One after another and kept: those of one instant do not count for each other.
    lease = handle.options(stream=True, method_name="lease")
    asked = LeaseRequest(session_id="s", public_key="k", prefix_key="key 0")
    held: list[Any] = []
    crowd: list[int] = []
    for _ in range(24):
        held.append(lease.remote(asked))
        crowd.append(await anext(held[-1]))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(give_back, held))
    assert min(crowd.count(holder) for holder in set(places.values())) >= 9


async def test_a_stopped_replica_is_passed_over_until_it_goes_on(handle: Any) -> None:
    holders = set(await take(handle, 20))
    assert len(holders) == NUM_REPLICAS
    stopped = min(holders)
    os.kill(stopped, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert set(await take(handle, 20)) == holders - {stopped}
    finally:
        os.kill(stopped, signal.SIGCONT)
    async with asyncio.timeout(WAIT_S):
        while stopped not in await take(handle, 20):
            pass


async def become_full(is_full: bool) -> None:
    for _ in range(int(WAIT_S / 0.05)):
        if ("Single" in full().names()) == is_full:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{is_full=} does not come")


async def test_full_is_told_from_silent(held: HeldService) -> None:
    held.get("bare_serve")
    place: Any = Place
    single = place.options(name="Single", num_replicas=1, max_ongoing_requests=1)
    with applications({"single": single.bind()}):
        handle: Any = serve.get_app_handle("single")
        lease = handle.options(stream=True, method_name="lease")
        taken = lease.remote()
        async with asyncio.timeout(WAIT_S):
            holder = await anext(taken)
        waiting = lease.remote()
        turn = asyncio.ensure_future(anext(waiting))
        await become_full(True)
        for _ in range(50):
            await asyncio.sleep(0.1)
            assert "Single" in full().names(), "a full replica is asked again while a request waits"
        os.kill(holder, signal.SIGSTOP)
        try:
            await become_full(False)
        finally:
            os.kill(holder, signal.SIGCONT)
        async with asyncio.timeout(WAIT_S):
            await give_back(taken)
            assert await turn == holder
            await give_back(waiting)
