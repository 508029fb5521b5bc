"""A smaller draft model drafts for a larger one, which drafts for the target.

Its tokens are a guess of the larger one's draft (`guesses`). The larger samples behind all of them
in one pass, and the draft is that of its single steps. A token of such a guess costs a step of the
smaller model beside its row. So it is asked for while the larger one's odds of agreeing are above
the price of both. Where none is worth it, a token is asked for now and then, for odds and prices
change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from models.protocol.errors import Unavailable
from models.protocol.messages import Proposal
from models.protocol.token_sequence import TokenSequence
from router.planning.acceptance import AcceptanceEstimate
from router.ports import Drafter, DrafterTraits

_TRIED_ONE_IN = 32  # drafts for which no guess is worth it


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerGuess:
    """A guess of the smaller model, and the time that it took."""

    drafter: DrafterTraits
    proposal: Proposal | None  # None: it was lost
    elapsed_ms: float


class SmallerDraft:
    """The smaller draft model of one session.

    Args:
        traits: of the smaller one.
        larger: the draft model that it guesses for, by name.
        make: connects to the smaller one; called when it is first of use.
        odds: that the larger one says its tokens.
    """

    def __init__(
        self,
        traits: DrafterTraits,
        larger: str,
        make: Callable[[], Drafter],
        odds: AcceptanceEstimate,
    ) -> None:
        self.traits = traits
        self.larger = larger
        self._make = make
        self._odds = odds
        self._drafter: Drafter | None = None
        self._num_idle = 0  # drafts in a row for which no guess was worth it

    async def guess(
        self, text: TokenSequence, num_tokens: int, price: float
    ) -> SmallerGuess | None:
        """Guess up to `num_tokens` (>= 1) tokens after `text`; None: it is not asked.

        Args:
            text: that the larger one drafts after.
            num_tokens: most tokens of the guess.
            price: what a token must survive with to be worth it.
        """
        if self._drafter is None:
            self._drafter = self._make()
        if not self._drafter.is_ready:
            return None
        worth = self._num_worth(num_tokens, price)
        if worth == 0:
            return None
        began, proposal = time.perf_counter(), None
        with contextlib.suppress(Unavailable):  # lost just now: it rejoins by itself
            proposal = await self._drafter.propose(text, worth)
        elapsed_ms = (time.perf_counter() - began) * 1e3
        return SmallerGuess(drafter=self.traits, proposal=proposal, elapsed_ms=elapsed_ms)

    def learn(self, num_guessed: int, num_right: int) -> None:
        """Take in how many tokens of a guess the larger one said."""
        self._odds.observe(num_guessed, num_right)

    async def close(self) -> None:
        """Free the session on it. Idempotent; never raises."""
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            await drafter.close()

    def _num_worth(self, num_tokens: int, price: float) -> int:
        alive = self._odds.survival(num_tokens)
        num_worth = sum(1 for _ in takewhile(lambda one: one > price, alive))
        self._num_idle = 0 if num_worth > 0 else self._num_idle + 1
        if self._num_idle >= _TRIED_ONE_IN:
            self._num_idle = 0
            return 1
        return num_worth
