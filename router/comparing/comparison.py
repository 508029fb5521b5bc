"""Draft models compared on answers that are there: what each would have drafted, counted exactly.

A share of the sessions that end is asked of every draft model, one session at a time. This happens
after the client has the answer, so it delays no client. The results are counted by draft model, and
the choice among them believes them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from router.stats import DraftReplay

LENGTHS = tuple(range(1, 9))  # k for which rounds are counted


@dataclass(slots=True)
class ReplayCounts:
    """Sums over the answers that one draft model was asked about.

    Attributes:
        num_tokens: of the answers.
        num_matched: of these, said by the draft model as well.
        num_rounds: by k, the rounds that these tokens would have taken.
    """

    num_answers: int = 0
    num_tokens: int = 0
    num_matched: int = 0
    num_rounds: Counter[int] = field(default_factory=Counter)

    def add(self, replay: DraftReplay) -> None:
        """Take in one answer."""
        self.num_answers += 1
        self.num_tokens += len(replay.matches)
        self.num_matched += sum(replay.matches)
        for length in LENGTHS:
            self.num_rounds[length] += len(replay.accepted(length))

    def by_said(self) -> dict[str, int]:
        """Return the tokens of the answers by whether the draft model said them, "yes" or "no"."""
        return {"yes": self.num_matched, "no": self.num_tokens - self.num_matched}


class Replayed(Protocol):
    """A session whose answer draft models can be asked about."""

    async def replays(self) -> dict[str, DraftReplay]:
        """Return each present draft model's replay of the answer."""
        ...

    def learn(self, found: Mapping[str, DraftReplay]) -> None:
        """Count what was found, and believe it."""
        ...


class DraftComparison:
    """Counts by draft model, and the one comparison that is under way.

    Attributes:
        counts: by draft model.
    """

    def __init__(self) -> None:
        self.counts: dict[str, ReplayCounts] = {}
        self._task: asyncio.Task[None] | None = None
        self._random = random.Random(0)

    def wants(self, share: float) -> bool:
        """Return whether a session that ends now is to be compared."""
        is_free = self._task is None or self._task.done()
        return is_free and share > 0.0 and self._random.random() < share

    def begin(self, replayed: Replayed) -> None:
        """Compare in the background."""
        self._task = asyncio.create_task(_compare(replayed), name="draft-comparison")

    def add(self, found: Mapping[str, DraftReplay]) -> None:
        """Count what the draft models would have drafted for one answer."""
        for name, replay in found.items():
            self.counts.setdefault(name, ReplayCounts()).add(replay)

    async def close(self) -> None:
        """Give up what is under way. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _compare(replayed: Replayed) -> None:
    replayed.learn(await replayed.replays())
