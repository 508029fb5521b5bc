"""The router is pure asyncio: its tests run on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadtest.fuzz.failures.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test of this folder gets a loop whose clock jumps over waits."""
    return {"virtual-time": VirtualTimeLoop}
