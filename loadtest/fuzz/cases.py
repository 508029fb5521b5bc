"""Shared by parts of the fuzzer: seeds of cases, the findings of a case, the way to repeat it.

The content of a case is a pure function of its own seed. The seed is derived from the run's seed,
the part's name and its number. So one case can be run again without those before it. The clock is
not in the seed; it decides which draft lengths are planned and which sessions share a pass.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

World = TypeVar("World")

_SEED_BYTES = 6  # short enough to be typed


@dataclass(slots=True)
class Outcome:
    """The counts of one case, and its complaints; none if all held."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)  # what happened, where a seed decides all of it

    def add(self, other: Outcome) -> None:
        """Take over what another one found."""
        self.counts.update(other.counts)
        self.complaints += other.complaints


RunCase = Callable[[int], Awaitable[Outcome]]
OpenPart = Callable[[], AbstractAsyncContextManager[RunCase]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that complained."""

    part: str
    seed: int
    complaints: tuple[str, ...]

    @property
    def command(self) -> str:
        """Runs this case alone."""
        return f"python -m loadtest fuzz --set parts={self.part} case={self.seed}"


def case_seed(run_seed: int, part: str, number: int) -> int:
    """Return the seed of a part's case number `number`."""
    digest = hashlib.sha256(f"{run_seed}/{part}/{number}".encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big")


def in_world(
    open_world: Callable[[], AbstractAsyncContextManager[World]],
    case: Callable[[int, World], Awaitable[Outcome]],
) -> OpenPart:
    """Make a part of cases that share a world."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[RunCase]:
        async with open_world() as world:
            yield lambda seed: case(seed, world)

    return opened


def in_thread(case: Callable[[int], Outcome]) -> OpenPart:
    """Make a part of cases that share nothing, each in a thread with room for an event loop."""
    return in_world(nullcontext, lambda seed, nothing: asyncio.to_thread(case, seed))
