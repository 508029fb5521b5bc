from __future__ import annotations

import asyncio
import threading

import pytest

from loadtest.client.thread import LoadThread


def test_a_load_runs_until_it_is_stopped_and_can_begin_again() -> None:
    begun = threading.Semaphore(0)

    async def load() -> None:
        begun.release()
        while not thread.is_stopping:  # noqa: ASYNC110  # as loads do between two requests
            await asyncio.sleep(0.001)

    thread = LoadThread("test", load)
    for _ in range(2):
        thread.start()
        assert begun.acquire(timeout=10)
        thread.stop()
    thread.stop()
    assert thread.cpu_s > 0


def test_a_load_that_fails_is_told_when_it_is_stopped() -> None:
    async def load() -> None:
        raise ValueError("wrong")

    thread = LoadThread("test", load)
    thread.start()
    with pytest.raises(RuntimeError, match="the load itself failed") as failure:
        thread.stop()
    assert isinstance(failure.value.__cause__, ValueError)
