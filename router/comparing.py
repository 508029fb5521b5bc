"""Draft models compared on answers that are there: what each would have drafted, counted exactly.

A share of the sessions that end is asked of every draft model, one session at a time. This happens
after the client has the answer, so it delays no client. The results are counted by draft model, and
the choice among them believes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from models.protocol.errors import ServingError
from models.protocol.rules import RULES
from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import DrafterKind
from router.limits import SessionLimits
from router.planning.acceptance import AcceptancePool
from router.ports import DrafterTraits
from router.remote.engine import EngineClient
from router.remote.replay import replay
from router.stats import DraftReplay
from router.types import GenerationRequest

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

    def begin(self, replayed: SessionReplays) -> None:
        """Compare in the background."""
        self._task = asyncio.create_task(_compare(replayed), name="draft-comparison")

    def add(self, found: Mapping[str, DraftReplay]) -> None:
        """Count what the draft models would have drafted for one answer."""
        for name, replayed in found.items():
            self.counts.setdefault(name, ReplayCounts()).add(replayed)

    async def close(self) -> None:
        """Give up what is under way. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReplays:
    """A session whose answer draft models are asked about, once it is there.

    Attributes:
        request: which is being answered.
        committed: its prompt and the answer so far.
        models: the draft models that there are.
        client: of an engine, by the name of its pool and a session's id there.
        limits: how long a draft model is waited for.
        acceptance: what is believed of a draft model's tokens in such texts.
        comparison: counts.
        max_length: the longest draft.
    """

    request: GenerationRequest
    committed: TokenSequence
    models: Sequence[DrafterKind]
    client: Callable[[str, str], EngineClient]
    limits: SessionLimits
    acceptance: Callable[[DrafterTraits], AcceptancePool]
    comparison: DraftComparison
    max_length: int

    async def replays(self) -> dict[str, DraftReplay]:
        """Return each present draft model's replay of the answer so far.

        It is empty for a text under a grammar or out of a list. Masks of passed places are not
        kept. It is also empty if the rule gives drafts noise of their own: only shared noise
        predicts them.
        """
        found: dict[str, DraftReplay] = {}
        request, num_prompt = self.request, len(self.request.prompt_ids)
        if RULES[request.sampling.verification].depends_on_draft:
            return found
        if request.grammar is not None or request.choices or len(self.committed) == num_prompt:
            return found
        for kind in self.models:
            client = self.client(kind.uses_pool, f"{request.request_id}-replay")
            with contextlib.suppress(ServingError):  # it is away, or the text too long for it
                found[kind.name] = await replay(client, self.committed, num_prompt, self.limits)
        return found

    def learn(self, found: Mapping[str, DraftReplay]) -> None:
        """Count what draft models would have drafted, and believe it."""
        self.comparison.add(found)
        length = min(self.max_length, LENGTHS[-1])
        for kind in self.models:
            if kind.name in found and length > 0:
                pool = self.acceptance(kind.traits)
                for num_accepted in found[kind.name].accepted(length):
                    pool.observe(length, num_accepted)


async def _compare(replayed: SessionReplays) -> None:
    replayed.learn(await replayed.replays())
