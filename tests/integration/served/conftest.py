"""One demo, as shipped, for all modules that use it so: a start and an end cost half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.served_demo import ServedDemo, served_demo


@pytest.fixture(scope="session")
def demo() -> Iterator[ServedDemo]:
    """configs/demo.yaml under `serve run`; tests leave it whole, or wait until it is."""
    with served_demo() as service:
        yield service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Its tests come last, because it ends with the run: one Ray cluster at a time."""
    items.sort(key=lambda item: "demo" in getattr(item, "fixturenames", ()))
