"""A replica keeps one spare of its model: loaded, given away once, and loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from deployments.engine import spare as module
from deployments.engine.spare import Spare, SpareState
from tests.harness.waiting import wait_until


class Loaded:
    """A loaded model, as the spare sees it."""

    def __init__(self) -> None:
        self.lost = ""
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


class Loader:
    """Loads models, or fails; the test says when."""

    def __init__(self) -> None:
        self.made: list[Loaded] = []
        self.num_failures = 0
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def load(self) -> Loaded:
        await self.may_load.wait()
        if self.num_failures:
            self.num_failures -= 1
            raise ValueError("no room")
        self.made.append(Loaded())
        return self.made[-1]


@pytest.fixture
async def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setattr(module, "_AFTER_START_S", 0.01)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    return Loader()


@asynccontextmanager
async def spare_of(
    loader: Loader, note: Callable[[SpareState], None] = lambda state: None
) -> AsyncIterator[Spare[Loaded]]:
    one = Spare(loader.load, (ValueError,), note)
    yield one
    one.end()


async def test_a_spare_is_given_once_and_another_is_loaded(loader: Loader) -> None:
    states: list[SpareState] = []
    async with spare_of(loader, states.append) as spare:
        assert spare.take() is None, "nothing is loaded yet"
        await wait_until(lambda: spare.model is not None)
        loader.may_load.clear()
        assert spare.take() is loader.made[0]
        assert spare.take() is None
        loader.may_load.set()
        await wait_until(lambda: spare.model is not None)
        assert spare.model is loader.made[1]
    assert not loader.made[0].is_ended, "it serves"
    assert loader.made[1].is_ended
    assert states[-1] == SpareState(is_ready=True, num_takeovers=1)
    assert SpareState(is_ready=False, num_takeovers=1) in states


async def test_a_spare_that_cannot_be_had_is_tried_again(loader: Loader) -> None:
    loader.num_failures = 3
    async with spare_of(loader) as spare:
        await wait_until(lambda: spare.model is not None)
    assert loader.num_failures == 0
    assert len(loader.made) == 1


async def test_a_lost_spare_is_replaced_and_takes_over_from_nobody(loader: Loader) -> None:
    states: list[SpareState] = []
    async with spare_of(loader, states.append) as spare:
        await wait_until(lambda: spare.model is not None)
        loader.may_load.clear()
        spare.note_loss(Loaded())  # some other model
        assert spare.model is loader.made[0]
        spare.note_loss(loader.made[0])
        assert loader.made[0].is_ended
        assert spare.take() is None
        loader.may_load.set()
        await wait_until(lambda: spare.model is not None)
        assert spare.model is loader.made[1]
    assert states[-1] == SpareState(is_ready=True, num_takeovers=0)


async def test_a_spare_that_is_lost_while_it_loads_is_no_spare(loader: Loader) -> None:
    async def load() -> Loaded:
        model = await loader.load()
        model.lost = "killed" if len(loader.made) == 1 else ""
        return model

    one = Spare(load, (ValueError,), lambda state: None)
    await wait_until(lambda: one.model is not None)
    assert one.model is loader.made[1]
    assert loader.made[0].is_ended
    one.end()
