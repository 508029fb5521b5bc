"""Prompt lookup: the draft is what followed the last tokens the last time they occurred.

Looks for the longest n-gram, of `max_len` down to `min_len` tokens, that ends the committed tokens
and occurred before. It takes the most recent earlier occurrence, and proposes the tokens after it.
Where that runs into the end of the text it goes on with the period it implies. Costs no model and
no step; pays where output repeats its input (extraction, code, quoting). The names of the limits
are vLLM's (`prompt_lookup_min`, `prompt_lookup_max`); the idea is Saxena's prompt lookup decoding.

Committed tokens only, so there is nothing to roll back. The index holds, for each n-gram, the end
of its latest occurrence. A token is added to it once. So a round costs a few dictionary lookups for
any length of the text. Memory: about 100 bytes per token and n-gram length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from models.protocol.messages import Proposal, Timing
from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import DrafterContext, DrafterKind, before_eos
from router.ports import DraftCost, DrafterTraits

_TOKENS_AT_ONCE = 512  # indexed before other sessions get a turn; about 1 ms


class NgramDrafter:
    """Implements `ports.Drafter` for one session whose text only ever grows.

    Args:
        session_id: goes into the proposals.
        min_len, max_len: shortest and longest n-gram to match, in tokens; 1 <= min <= max.
        eos_ids: a draft ends before one of these: nothing follows it.
    """

    is_ready = True  # see `ports.Drafter`
    is_over = False

    def __init__(
        self, session_id: str, *, min_len: int, max_len: int, eos_ids: Collection[int] = ()
    ) -> None:
        self._session_id = session_id
        self._lengths = range(max_len, min_len - 1, -1)
        self._eos_ids = frozenset(eos_ids)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0  # n-grams that end within the first so many tokens are in the index

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        """See `ports.Drafter.propose`. No tokens where nothing matches."""
        ids = committed.ids
        # The n-gram that ends the text is what is looked for; it is indexed a token later.
        while self._num_indexed < len(ids) - 1:
            self._index(ids, min(len(ids) - 1, self._num_indexed + _TOKENS_AT_ONCE))
            if self._num_indexed < len(ids) - 1:
                await asyncio.sleep(0)
        found = self._following(ids, num_draft_tokens)
        tokens = list(before_eos(found, self._eos_ids))
        return Proposal(
            session_id=self._session_id,
            seq=0,
            tokens=tokens,
            timing=Timing(),
            step_ms=0.0,
            cut="" if len(tokens) == len(found) else "eos",
        )

    async def close(self) -> None:
        """See `ports.Drafter.close`."""
        self._ends.clear()

    def _index(self, ids: list[int], until: int) -> None:
        for end in range(self._num_indexed + 1, until + 1):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(ids[end - length : end])] = end
        self._num_indexed = until

    def _following(self, ids: list[int], num_tokens: int) -> list[int]:
        for length in self._lengths:
            end = self._ends.get(tuple(ids[-length:])) if length < len(ids) else None
            if end is not None:
                period = len(ids) - end
                return [ids[end + offset % period] for offset in range(num_tokens)]
        return []


def _make(context: DrafterContext) -> NgramDrafter:
    return NgramDrafter(
        context.session_id,
        min_len=context.speculation.prompt_lookup_min,
        max_len=context.speculation.prompt_lookup_max,
        eos_ids=context.eos_ids,
    )


NGRAM = DrafterKind(
    traits=DrafterTraits(
        name="ngram",
        cost=DraftCost.FREE,
        # It knows no language: of its first tokens 0.3 were accepted in the demo pair's
        # extractions, 0.2 in its stories.
        prior_acceptance={"structured": 0.4, "free": 0.3, "creative": 0.15},
    ),
    label="prompt lookup",
    make=_make,
    is_switched_on=lambda limits: limits.prompt_lookup_max > 0,
    needs="a prompt_lookup_max of at least 1",
    absence="is switched off here, prompt_lookup_max is 0",
    fills_in=True,
)
