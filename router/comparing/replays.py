"""A session whose answer draft models are asked about, once it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models.protocol.errors import ServingError
from models.protocol.rules import RULES
from models.protocol.token_sequence import TokenSequence
from router.comparing.comparison import LENGTHS, DraftComparison
from router.drafters.kind import DrafterKind
from router.limits import SessionLimits
from router.planning.acceptance import AcceptancePool
from router.ports import DrafterTraits
from router.remote.engine import EngineClient
from router.remote.replay import replay
from router.stats import DraftReplay
from router.types import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReplays:
    """Implements `Replayed`.

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
