"""What parts of the fuzzer share: seeds of cases, what a case found, how it is repeated.

What a case asks for is a pure function of its own seed, which is derived from the run's, the part's
name and its number; so one case can be run again without those before it. What is not in the seed
is the clock: it decides which draft lengths are planned and which sessions share a pass.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

_SEED_BYTES = 6  # short enough to be typed


@dataclass(slots=True)
class Outcome:
    """What one case counted, and what it complains about; nothing when all held."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

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
        return f"python -m loadtest.fuzz --parts {self.part} --case {self.seed}"


def case_seed(run_seed: int, part: str, number: int) -> int:
    """The seed of a part's case number `number`."""
    digest = hashlib.sha256(f"{run_seed}/{part}/{number}".encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big")
