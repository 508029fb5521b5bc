"""Bounds on running and waiting sessions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from http_fakes import ScriptedGenerator, tiny_tokenizer

from deployments.admission import AdmittingGenerator
from models.errors import Overloaded
from models.messages import Sampling
from router.generation import Finished, GenerationRequest

REQUEST = GenerationRequest(
    request_id="r", prompt_ids=(1,), sampling=Sampling(), eos_ids=(), max_tokens=3
)
DETOKENIZER = tiny_tokenizer().detokenizer()


async def run(admitting: AdmittingGenerator) -> int:
    async with aclosing(admitting.generate(REQUEST, DETOKENIZER)) as items:
        return len([item async for item in items if isinstance(item, Finished)])


def admitting(
    generator: ScriptedGenerator, *, max_queued: int = 1, queue_wait_s: float = 5.0
) -> AdmittingGenerator:
    return AdmittingGenerator(
        generator, max_sessions=2, max_queued=max_queued, queue_wait_s=queue_wait_s
    )


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
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_waiting_has_a_limit():
    generator = ScriptedGenerator(hang_at=0)
    door = admitting(generator, queue_wait_s=0.02)
    running = [asyncio.create_task(run(door)) for _ in range(2)]
    await asyncio.sleep(0.005)
    with pytest.raises(Overloaded, match=r"within 0\.02 s"):
        await run(door)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    generator.hang_at = None
    assert await run(door) == 1


async def test_a_failure_gives_its_place_back():
    door = admitting(ScriptedGenerator(error=Overloaded("inside")))
    for _ in range(5):
        with pytest.raises(Overloaded, match="inside"):
            await run(door)
    assert (door.num_running, door.num_queued) == (0, 0)


async def started(door: AdmittingGenerator, number: int) -> list[asyncio.Task[int]]:
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
    await door.set_limits(max_sessions=5, max_queued=9, queue_wait_s=5.0)
    await asyncio.sleep(0.01)
    assert (door.num_running, door.num_queued) == (5, 1)
    await ended(tasks)
    assert (door.num_running, door.num_queued) == (0, 0)


async def test_fewer_places_end_nobody_and_admit_nobody():
    generator = ScriptedGenerator(hang_at=0)
    door = admitting(generator, max_queued=1)
    await door.set_limits(max_sessions=4, max_queued=1, queue_wait_s=5.0)
    tasks = await started(door, 4)
    await door.set_limits(max_sessions=1, max_queued=1, queue_wait_s=0.02)
    assert door.num_running == 4
    await ended(tasks[:3])
    with pytest.raises(Overloaded, match="1 are running"):  # one still has the only place
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
        await door.set_limits(max_sessions=number, max_queued=0, queue_wait_s=5.0)
        tasks = await started(door, number)
        assert door.num_running == number
        with pytest.raises(Overloaded, match=f"{number} sessions are running"):
            await run(door)
        await ended(tasks)
