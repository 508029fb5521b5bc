"""Estimates the probability of each outcome of a verification, for drafts ahead.

An outcome is the number of accepted draft tokens, and the rank of the target's own token. Ranks are
places among the draft model's candidates. Both models draw with the same noise, so that rank is
mostly low. A draft model is surer of a token the farther its score is above the next one's. So the
share of tokens that the target says too is kept by that margin.

For example, two tokens are drafted. The first has a margin of 3, and the target says 95% of such
tokens too. The second has 0.2, and 60%. Then no token is accepted in 5% of verifications, one in
38%, and both in 57%. The second candidate is right in 70% of rejections. So it is worth a branch
after the first token (27%), and hardly before it (3%).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.costs.running_mean import running_mean

MAX_RANKS = 4  # candidates that are looked at
_EDGES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of margins, in nats
_FIRST_SHARES = (0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.97)  # said by the target too, before any was seen
_FIRST_RANKS = (0.0, 0.65, 0.15, 0.05)
_WEIGHT = 0.03  # of the newest outcome in running means


@dataclass(slots=True)
class Outcomes:
    """Counts outcomes, to tell how likely the next ones are.

    Attributes:
        ranks: where the target did not say the draft's token, the share in which it said the
            candidate of each rank.
    """

    ranks: list[float] = field(default_factory=lambda: list(_FIRST_RANKS))
    _shares: dict[bool, list[float]] = field(default_factory=dict)  # by whether it is greedy

    def of_draft(self, margins: Sequence[float], *, is_greedy: bool) -> tuple[list[float], float]:
        """Return the probabilities that it is right up to each token, and no further; and whole."""
        alive, ends = 1.0, []
        for margin in margins:
            share = self.agreement(margin, is_greedy=is_greedy)
            ends.append(alive * (1.0 - share))
            alive *= share
        return ends, alive

    def agreement(self, margin: float, *, is_greedy: bool) -> float:
        """Return the share of tokens of such a margin that the target says too."""
        return self._shares_of(is_greedy)[bisect_right(_EDGES, margin)]

    def learn(
        self, margins: Sequence[float], num_accepted: int, rank: int | None, *, is_greedy: bool
    ) -> None:
        """Take in one outcome.

        Args:
            margins: of the draft's tokens, and of the one after a whole draft where it is known.
            num_accepted: of the draft.
            rank: of the token behind them; None: it was no candidate that was looked at.
            is_greedy: how tokens were drawn.
        """
        shares = self._shares_of(is_greedy)
        for place, margin in enumerate(margins[: num_accepted + 1]):
            cell = bisect_right(_EDGES, margin)
            is_right = place < num_accepted or rank == 0
            shares[cell] = running_mean(shares[cell], float(is_right), _WEIGHT)
        if rank != 0:
            for each in range(1, MAX_RANKS):
                self.ranks[each] = running_mean(self.ranks[each], float(each == rank), _WEIGHT)

    def _shares_of(self, is_greedy: bool) -> list[float]:
        return self._shares.setdefault(is_greedy, list(_FIRST_SHARES))
