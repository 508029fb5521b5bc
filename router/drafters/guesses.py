"""Staged speculation: a cheaper drafter guesses for the draft model, which drafts for the target.

A draft model takes a step for each token. The guess comes from suffix decoding, or else from a
smaller draft model (`smaller`). The draft model is sent it and samples behind all of its tokens in
one pass. Each token that it would have drafted anyway saves a step. The first other token costs
only the rows behind it. The draft is the same, so nothing that is verified later can change.

The length of a guess follows from prices (`planning.costs`). A row of a draft pass is compared with
the part of a step that a right token saves. The rate at which the draft model agrees with earlier
text is learnt from its drafts. It is kept apart from the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.match_odds import MatchOdds
from router.drafters.side_by_side import SessionDrafters
from router.drafters.smaller import SmallerDraft, SmallerGuess
from router.planning.costs import PassCosts
from router.ports import DraftCost


class Guesses:
    """Guesses of one session's drafts.

    Args:
        drafters: of the session; free ones guess, an engine verifies.
        odds: that the draft model says what followed before.
        costs: of steps and rows of the draft model.
        smaller: a draft model that guesses where nothing is found that is worth its rows.
    """

    def __init__(
        self,
        drafters: SessionDrafters,
        odds: MatchOdds,
        costs: PassCosts,
        smaller: SmallerDraft | None = None,
    ) -> None:
        self._drafters = drafters
        self._odds = odds
        self._costs = costs
        self._smaller = smaller
        self._cells: Sequence[int] = ()  # the last guess's, if it was found
        self._is_of_smaller = False  # the last guess

    def next(self, text: TokenSequence, num_draft_tokens: int) -> Sequence[int]:
        """Return a guess of the next draft's tokens; empty if none is worth its rows.

        It is shorter than the draft: the row behind its last token samples one more.
        """
        self._cells, self._is_of_smaller = (), False
        drafter = self._drafters.next_drafter
        if num_draft_tokens < 2 or drafter is None or drafter.cost is not DraftCost.REMOTE:
            return ()
        price = self._costs.guess_price(drafter.name)
        for named in self._drafters.guessers():
            draft = named.drafter.look(text, num_draft_tokens - 1)
            survival = self._odds.survival(draft.cells)
            num_worth = sum(1 for _ in takewhile(lambda alive: alive > price, survival))
            if num_worth > 0:
                self._cells = draft.cells[:num_worth]
                return draft.tokens[:num_worth]
        return ()

    async def ask_smaller(self, text: TokenSequence, num_draft_tokens: int) -> SmallerGuess | None:
        """Ask the smaller draft model for a guess; None if it is not asked."""
        smaller, drafter = self._smaller, self._drafters.next_drafter
        if smaller is None or drafter is None or drafter.name != smaller.larger:
            return None
        if num_draft_tokens < 2:
            return None
        name = drafter.name
        price = self._costs.guess_price(name) + self._costs.step_share(smaller.traits.name, name)
        self._is_of_smaller = True
        return await smaller.guess(text, num_draft_tokens - 1, price)

    async def close(self) -> None:
        """Free the session on the smaller draft model. Idempotent; never raises."""
        if self._smaller is not None:
            await self._smaller.close()

    def learn(self, guess: Sequence[int], drafted: Sequence[int]) -> None:
        """Take in what the draft model drafted where the last guess was `guess`."""
        if self._is_of_smaller and self._smaller is not None:
            pairs = list(zip(guess, drafted, strict=False))
            num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._smaller.learn(len(pairs), num_right)
        for cell, guessed, said in zip(self._cells, guess, drafted, strict=False):
            self._odds.observe(cell, is_right=guessed == said)
            if guessed != said:
                return
