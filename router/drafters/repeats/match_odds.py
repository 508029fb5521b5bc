"""Estimates how likely the next token of a match is right: by length and agreement, learnt live.

The text mostly goes on as before after a long match. After one token it hardly does so more often
than by chance. If the places disagree, the likeliest token is right about as often as its share. So
each cell (match length, share) counts how often the token drafted in it was the text's. It is
shrunk to all sessions of the router, which start from measurements. A draft's tokens walk through
the cells: if the first is right, the match is one longer.

Nothing has to be drafted for that, because the text itself shows which tokens would have been
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import mul

_FORGETTING = 0.99  # a session remembers about 100 tokens of a cell
_POOL_FORGETTING = 0.998  # a pool, fed by many sessions, about 500
_POOL_WEIGHT = 8.0  # tokens a session needs to outweigh its pool
_PRIOR_WEIGHT = 20.0  # tokens a pool needs to outweigh its start

_LONGEST = 24  # longer matches count as that long
# 1, 2, 3 - 4, 5 - 8, 9 - 16, longer.
_LENGTH_CLASS = (0, 0, 1, *repeat(2, 2), *repeat(3, 4), *repeat(4, 8), *repeat(5, _LONGEST - 16))
_ALL_AGREE, _MOST_AGREE = 1.0, 0.6
_NUM_SHARES = 3
# By class of length: places differ, most agree, all agree. Measured in greedy texts of the demo
# pair and of SmolLM2, 80 and 44 of them; where few were seen, between the neighbours.
_PRIORS = (
    (0.12, 0.42, 0.32),
    (0.12, 0.40, 0.50),
    (0.32, 0.50, 0.63),
    (0.50, 0.70, 0.74),
    (0.50, 0.75, 0.84),
    (0.50, 0.80, 0.97),
)
_NUM_CELLS = len(_PRIORS) * _NUM_SHARES


def cells(length: int, shares: Sequence[float]) -> list[int]:
    """Return the cell of each token of a draft after a match of `length` tokens."""
    return [
        _NUM_SHARES * _LENGTH_CLASS[min(length + at, _LONGEST)]
        + (2 if share >= _ALL_AGREE else 1 if share >= _MOST_AGREE else 0)
        for at, share in enumerate(shares)
    ]


class _Counts:
    """Decayed counts of tokens by cell, and of those that were right."""

    __slots__ = ("_forgetting", "right", "seen")

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self.seen = [0.0] * _NUM_CELLS
        self.right = [0.0] * _NUM_CELLS

    def observe(self, cell: int, *, is_right: bool) -> None:
        """Take in one token."""
        self.seen[cell] = self._forgetting * self.seen[cell] + 1.0
        self.right[cell] = self._forgetting * self.right[cell] + is_right


class OddsPool(_Counts):
    """The observations of all sessions of a router."""

    def __init__(self) -> None:
        super().__init__(_POOL_FORGETTING)
        self._priors = list(chain.from_iterable(_PRIORS))

    def odds(self, cell: int) -> float:
        """Probability that a token in this cell is right."""
        return (self.right[cell] + _PRIOR_WEIGHT * self._priors[cell]) / (
            self.seen[cell] + _PRIOR_WEIGHT
        )


@dataclass(frozen=True, slots=True)
class _Forecast:
    """A prediction of the tokens after the first `start` ones, if these end with `tail`."""

    start: int
    tail: Sequence[int]
    tokens: Sequence[int]
    cells: Sequence[int]


class MatchOdds:
    """One session's odds, leaning on the pool while it has seen little itself.

    The text teaches them: what was drafted last is compared with what it says.
    """

    def __init__(self, pool: OddsPool) -> None:
        self._pool = pool
        self._counts = _Counts(_FORGETTING)
        self._forecast = _Forecast(0, (), (), ())

    def observe(self, cell: int, *, is_right: bool) -> None:
        """Take in one token of this session, for itself and for the pool."""
        self._counts.observe(cell, is_right=is_right)
        self._pool.observe(cell, is_right=is_right)

    def survival(self, drafted: Sequence[int]) -> list[float]:
        """Probability that at least 1, 2, ... tokens are right, of a draft with these cells."""
        counts, pool = self._counts, self._pool
        return list(
            accumulate(
                (
                    (counts.right[cell] + _POOL_WEIGHT * pool.odds(cell))
                    / (counts.seen[cell] + _POOL_WEIGHT)
                    for cell in drafted
                ),
                mul,
            )
        )

    def note(
        self, ids: Sequence[int], num_committed: int, tokens: Sequence[int], drafted: Sequence[int]
    ) -> None:
        """`tokens` with the cells `drafted` follow `ids`, of which so many are committed."""
        self._forecast = _Forecast(len(ids), ids[num_committed:], tokens, drafted)

    def learn(self, ids: Sequence[int]) -> None:
        """Compare what was noted with the committed text, once something of it is known."""
        forecast = self._forecast
        start = forecast.start
        if start >= len(ids) or ids[start - len(forecast.tail) : start] != forecast.tail:
            return  # nothing is known yet, or it followed a draft that was rejected
        self.note((), 0, (), ())  # it teaches once, also if nothing is noted after it
        for cell, token_id, said in zip(forecast.cells, forecast.tokens, ids[start:], strict=False):
            self.observe(cell, is_right=token_id == said)
            if token_id != said:
                return
