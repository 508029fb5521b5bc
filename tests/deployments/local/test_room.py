"""Room for whole answers: by places and by KV blocks, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from deployments.local.room import Room
from models.engine.load import EngineLoad
from router.types import GenerationRequest, LookaheadSettings
from tests.fakes.sessions import asked


def request(num_tokens: int) -> GenerationRequest:
    return asked(prompt_ids=(1,), max_tokens=num_tokens - 1)


async def test_sessions_enter_while_blocks_and_places_last() -> None:
    room = Room(EngineLoad(num_blocks=5, block_size=16), num_places=3)
    await room.enter(request(33))  # three blocks
    waiting = asyncio.create_task(room.enter(request(48)))
    await asyncio.sleep(0)
    await room.enter(request(32))  # the two that are left
    await asyncio.sleep(0.01)
    assert not waiting.done()
    room.leave(request(33))
    await asyncio.wait_for(waiting, 1.0)
    last = asyncio.create_task(room.enter(request(1)))
    await asyncio.sleep(0.01)
    assert not last.done(), "no block is left"
    room.leave(request(32))
    await asyncio.wait_for(last, 1.0)


async def test_what_is_longer_than_all_blocks_gets_all_of_them() -> None:
    room = Room(EngineLoad(num_blocks=2, block_size=16), num_places=9)
    await asyncio.wait_for(room.enter(request(500)), 1.0)
    other = asyncio.create_task(room.enter(request(1)))
    await asyncio.sleep(0.01)
    assert not other.done()
    room.leave(request(500))
    await asyncio.wait_for(other, 1.0)


async def test_who_goes_while_waiting_takes_nothing() -> None:
    room = Room(EngineLoad(num_blocks=9, block_size=16), num_places=1)
    await room.enter(request(1))
    waiting = asyncio.create_task(room.enter(request(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    room.leave(request(1))
    await asyncio.wait_for(room.enter(request(1)), 1.0)


async def test_roll_outs_have_places_and_blocks_too() -> None:
    settings = LookaheadSettings(method="cdlh", reward="{}", text_of=str, candidates=2)
    steered = replace(request(16), lookahead=settings)
    room = Room(EngineLoad(num_blocks=4, block_size=16), num_places=9)
    await asyncio.wait_for(room.enter(steered), 1.0)  # three blocks
    second = asyncio.create_task(room.enter(steered))
    await asyncio.wait_for(room.enter(request(16)), 1.0)
    room.leave(request(16))
    await asyncio.sleep(0.01)
    assert not second.done()
    room.leave(steered)
    await asyncio.wait_for(second, 1.0)
    narrow = Room(EngineLoad(num_blocks=99, block_size=16), num_places=2)
    await asyncio.wait_for(narrow.enter(steered), 1.0)  # all places there are
