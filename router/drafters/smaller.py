"""A smaller draft model drafts for a larger one, which drafts for the target.

Its tokens are a guess of the larger one's draft. The larger samples behind all of them in one pass.
Each token that it would have drafted anyway saves it a step. The first other token costs only the
rows behind it. The draft is that of its single steps, so nothing that is verified later can change.

A token of a guess costs a step of the smaller model beside its row (`planning.costs`). So it is
asked for while the larger one's odds of agreeing are above the price of both. Where none is worth
it, a token is asked for now and then, for odds and prices change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

from models.protocol.errors import Unavailable
from models.protocol.token_sequence import TokenSequence, num_common
from router.drafters.side_by_side import NamedProposal
from router.planning.acceptance import AcceptanceEstimate
from router.planning.costs import PassCosts
from router.ports import Drafter, DrafterTraits

_TRIED_ONE_IN = 32  # drafts for which no guess is worth it


class SmallerDraft:
    """The smaller draft model of one session.

    Args:
        traits: of the smaller one.
        larger: the draft model that it guesses for, by name.
        make: connects to the smaller one; called when it is first of use.
        odds: that the larger one says its tokens.
        costs: of steps and rows of both.
    """

    def __init__(
        self,
        traits: DrafterTraits,
        larger: str,
        make: Callable[[], Drafter],
        odds: AcceptanceEstimate,
        costs: PassCosts,
    ) -> None:
        self._traits = traits
        self._larger = larger
        self._make = make
        self._odds = odds
        self._costs = costs
        self._drafter: Drafter | None = None
        self._num_idle = 0  # drafts in a row for which no guess was worth it

    async def guess(
        self, text: TokenSequence, num_draft_tokens: int, drafter: DrafterTraits | None
    ) -> NamedProposal | None:
        """Guess the draft of `drafter` after `text`; None: the smaller one is not asked.

        The guess is shorter than the draft: the row behind its last token samples one more.
        """
        if drafter is None or drafter.name != self._larger or num_draft_tokens < 2:
            return None
        if self._drafter is None:
            self._drafter = self._make()
        if not self._drafter.is_ready:
            return None
        worth = self._num_worth(num_draft_tokens - 1)
        if worth == 0:
            return None
        began, proposal = time.perf_counter(), None
        with contextlib.suppress(Unavailable):  # lost just now: it rejoins by itself
            proposal = await self._drafter.propose(text, worth)
        return NamedProposal(self._traits, proposal, (time.perf_counter() - began) * 1e3)

    def learn(self, guess: Sequence[int], drafted: Sequence[int]) -> None:
        """Take in what the larger one drafted where it was sent `guess`."""
        self._odds.observe(min(len(guess), len(drafted)), num_common(guess, drafted))

    async def close(self) -> None:
        """Free the session on it. Idempotent; never raises."""
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            await drafter.close()

    def _num_worth(self, num_tokens: int) -> int:
        smaller, larger = self._traits.name, self._larger
        price = self._costs.guess_price(larger) + self._costs.step_share(smaller, larger)
        alive = self._odds.survival(num_tokens)
        num_worth = sum(1 for _ in takewhile(lambda one: one > price, alive))
        self._num_idle = 0 if num_worth > 0 else self._num_idle + 1
        if self._num_idle >= _TRIED_ONE_IN:
            self._num_idle = 0
            return 1
        return num_worth
