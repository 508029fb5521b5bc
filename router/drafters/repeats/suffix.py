"""Suffix decoding: the draft is what most often followed where the text's end occurred before.

Looks in the prompt, in this answer, and in recent answers of the same `cache_salt`
(`text_memory.TextMemory`). Prompt lookup (`ngram`) does not look in other answers. A longer match
drafts further. Each draft has its probability of acceptance (`match_odds.MatchOdds`). Costs no
model and no step. A look takes some 25 us and a token of the text less than 1 us. These were
measured on the machine of the kept results. SuffixDecoding (arXiv 2411.04975) is the idea, and its
limits keep their names.

Committed tokens alone are kept, so there is nothing to roll back. A look may go on behind tokens
that are not committed yet, and they are compared with the kept ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from models.protocol.messages import Proposal, Timing
from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import DrafterContext, DrafterKind, before_eos
from router.drafters.repeats.match_odds import MatchOdds, cells
from router.drafters.repeats.suffix_index import LONGEST_KEY, MatchTerms, SuffixIndex
from router.limits import SpeculationLimits
from router.ports import DraftCost, DrafterTraits, FreeDraft

_TOKENS_AT_ONCE = 1024  # read before other sessions get a turn; about 1 ms


class SuffixDrafter:
    """Implements `ports.Drafter` and `ports.FreeDrafter` for one session.

    Args:
        session_id: goes into the proposals.
        committed: the session's text, which only ever grows.
        terms: how far to match and to draft.
        odds: of the session.
        others: further texts that may be drafted from, looked in after the session's own.
        eos_ids: a draft ends before one of these: nothing follows it.
    """

    is_ready = True  # see `ports.Drafter`
    is_over = False

    def __init__(
        self,
        session_id: str,
        committed: TokenSequence,
        terms: MatchTerms,
        odds: MatchOdds,
        *,
        others: Callable[[], Iterable[SuffixIndex]] = tuple,
        eos_ids: Collection[int] = (),
    ) -> None:
        self._session_id = session_id
        self._committed = committed
        self._terms = terms
        self._odds = odds
        self._others = others
        self._eos_ids = frozenset(eos_ids)
        self._own = SuffixIndex()
        self._last: tuple[tuple[int, int, int], FreeDraft] | None = None  # look and answer

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        """See `ports.Drafter.propose`. No tokens where nothing matches."""
        for _ in range(len(self._own), len(self._committed), _TOKENS_AT_ONCE):
            self._read_on()
            await asyncio.sleep(0)
        draft = self.look(committed, num_draft_tokens)
        return Proposal(
            session_id=self._session_id,
            seq=0,
            tokens=list(draft.tokens),
            timing=Timing(),
            step_ms=0.0,
        )

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        """See `ports.FreeDrafter.look`. Nothing is found before a long text has been read."""
        if num_tokens < 1 or self._read_on() > 0:
            return FreeDraft()
        asked = (len(text), text.hash_at(len(text)), num_tokens)
        if self._last is None or self._last[0] != asked:
            self._odds.learn(self._committed.ids)
            self._last = asked, self._best(text.ids, num_tokens)
        return self._last[1]

    def best_case(self, text: TokenSequence, num_tokens: int) -> Sequence[float]:
        """See `ports.FreeDrafter.best_case`. A match of a token or two counts for nothing.

        A short match is judged by the odds of the longest that it can be. It teaches when a round
        begins, and once it has grown.
        """
        if self._read_on() > 0:
            return []
        bound = self._own.match_bound(text.ids, is_own=True)
        for other in self._others():
            bound = max(bound, other.match_bound(text.ids, is_own=False))
        num_drafted = min(num_tokens, self._terms.num_drafted(bound)) if bound else 0
        if bound >= LONGEST_KEY:
            return [1.0] * num_drafted
        return self._odds.survival(cells(bound, [1.0] * num_drafted))

    async def close(self) -> None:
        """See `ports.Drafter.close`."""
        self._own, self._last = SuffixIndex(), None

    def _read_on(self) -> int:
        """Read on, for about a millisecond; how many committed tokens are left to be read."""
        ids, num_read = self._committed.ids, len(self._own)
        if num_read < len(ids):
            self._own.extend(ids[num_read : num_read + _TOKENS_AT_ONCE])
        return len(ids) - len(self._own)

    def _best(self, ids: list[int], num_tokens: int) -> FreeDraft:
        """Return the draft of which most tokens are expected to be accepted."""
        best = FreeDraft()
        most = 0.0
        for index in (self._own, *self._others()):
            is_own = index is self._own
            for match in index.matches(ids, num_tokens, self._terms, is_own=is_own):
                tokens = before_eos(match.tokens, self._eos_ids)
                match_cells = cells(match.length, match.shares[: len(tokens)])
                survival = self._odds.survival(match_cells)
                if sum(survival) > most:
                    most = sum(survival)
                    best = FreeDraft(tokens, survival, match_cells)
        self._odds.note(ids, len(self._own), best.tokens, best.cells)
        return best


def _terms(limits: SpeculationLimits) -> MatchTerms:
    return MatchTerms(
        max_tree_depth=limits.suffix_decoding_max_tree_depth,
        max_spec_factor=limits.suffix_decoding_max_spec_factor,
        max_spec_offset=limits.suffix_decoding_max_spec_offset,
        min_token_prob=limits.suffix_decoding_min_token_prob,
    )


def _make(context: DrafterContext) -> SuffixDrafter:
    return SuffixDrafter(
        context.session_id,
        context.committed,
        _terms(context.speculation),
        MatchOdds(context.memory.odds(context.task_class)),
        others=context.other_texts,
        eos_ids=context.eos_ids,
    )


SUFFIX = DrafterKind(
    traits=DrafterTraits(
        name="suffix",
        cost=DraftCost.FREE,
        # Tokens of its drafts in the demo pair's texts: 0.5 in extractions, 0.2 in stories.
        prior_acceptance={"structured": 0.5, "free": 0.4, "creative": 0.2},
    ),
    label="suffix decoding",
    make=_make,
    is_switched_on=lambda limits: limits.suffix_decoding_max_tree_depth > 0,
    needs="a suffix_decoding_max_tree_depth of at least 1",
    absence="is switched off here, suffix_decoding_max_tree_depth is 0",
    fills_in=True,
)
