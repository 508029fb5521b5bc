"""One demo, as shipped, for all modules that use it so: a start and an end cost half a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.harness.served_demo import ServedDemo, served_demo


class _HeldDemo:
    """The demo from the first test that asks for it to the last one in a row."""

    def __init__(self) -> None:
        self._service: ServedDemo | None = None
        self._until = contextlib.ExitStack()

    def get(self) -> ServedDemo:
        if self._service is None:
            self._service = self._until.enter_context(served_demo())
        return self._service

    def end(self) -> None:
        self._service = None
        self._until.close()


_held = _HeldDemo()


@pytest.fixture(scope="session")
def held() -> Iterator[_HeldDemo]:
    """Also where a run is cut short nothing is left behind."""
    yield _held
    _held.end()


@pytest.fixture
def demo(held: _HeldDemo) -> ServedDemo:
    """configs/demo.yaml under `serve run`; tests leave it whole, or wait until it is."""
    return held.get()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the demo where the next test does not use it: one Ray cluster at a time."""
    if nextitem is None or "demo" not in getattr(nextitem, "fixturenames", ()):
        _held.end()
