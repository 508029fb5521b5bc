"""The loop with virtual time: waits pass at once, in order, and a hang is an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

import pytest

from loadtest.fuzz.failures.virtual_time import VirtualTimeLoop


def run(coroutine: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(coroutine)


def test_hours_pass_at_once_in_order_and_by_the_clock() -> None:
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        woken.append((name, asyncio.get_running_loop().time() - began_s))

    async def main() -> None:
        sleepers = [sleep("day", 86_400.0), sleep("blink", 0.1), sleep("hour", 3600.0)]
        async with asyncio.TaskGroup() as tasks:
            for sleeper in sleepers:
                tasks.create_task(sleeper)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await asyncio.Event().wait()

    began_s = time.monotonic()
    run(main())
    assert time.monotonic() - began_s < 60.0
    assert [name for name, _ in woken] == ["blink", "hour", "day"]
    assert [seconds for _, seconds in woken] == pytest.approx([0.1, 3600.0, 86_400.0], abs=1e-3)


def test_waits_shorter_than_a_float_can_tell_end() -> None:
    """What is left of a window may come to 1e-17 s, which added to the clock is nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 1e-4
        while loop.time() < end_s:  # noqa: ASYNC110  # what is tried here
            await asyncio.sleep(1e-17)

    run(main())


def test_a_wait_that_nothing_can_end_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is set that could wake one"):
        run(main())
