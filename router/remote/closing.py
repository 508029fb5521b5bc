"""Frees what a session holds elsewhere, bounded in time, also while its task is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

_CLOSE_TIMEOUT_S = 5.0


class Part(Protocol):
    """A part that can be closed; see `router.ports`."""

    async def close(self) -> None:
        """Idempotent; never raises."""
        ...


async def close_in_time(parts: Iterable[Part], closings: set[asyncio.Task[None]]) -> None:
    """Close all parts side by side. `closings` keeps the work from the garbage collector."""
    closing = asyncio.create_task(_close(tuple(parts)), name="session-close")
    closings.add(closing)
    closing.add_done_callback(closings.discard)
    await asyncio.shield(closing)


async def _close(parts: tuple[Part, ...]) -> None:
    tasks = [asyncio.create_task(part.close()) for part in parts]
    _, late = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S)
    for task in late:
        task.cancel()
