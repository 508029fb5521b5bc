"""A text that a client says its answer will mostly repeat, and where an answer is in it.

If an answer leaves the text, its last tokens are looked for. The place where most of them match
counts; among equal ones, the one nearest to the expected place. A look costs a few dictionary
lookups and comparisons, however long the text is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

LONGEST_MATCH = 24  # tokens; longer matches count as that long
_KEY_LENGTHS = (4, 1)  # tokens; looked for in this order
_NUM_NEAR = 4  # places on either side of the expected one that a look compares


class PredictedText:
    """A predicted text and where its keys are; all choices of a request share one.

    Memory: some 300 bytes per token.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.ids = tuple(token_ids)
        self._ends: dict[tuple[int, ...], list[int]] = {}  # places after each key, rising
        for length in _KEY_LENGTHS:
            for end in range(length, len(self.ids)):  # nothing follows the last one
                self._ends.setdefault(self.ids[end - length : end], []).append(end)

    def place_after(self, ids: Sequence[int], near: int) -> tuple[int, int]:
        """Return the place that follows `ids`, and how many tokens before it match.

        Args:
            ids: a text.
            near: of equally long matches the one nearest to this place counts.
        """
        best, longest = 0, 0
        for place in self._candidates(ids, near):
            length = self._match_length(ids, place)
            if (length, -abs(place - near)) > (longest, -abs(best - near)):
                best, longest = place, length
        return best, longest

    def _candidates(self, ids: Sequence[int], near: int) -> Iterator[int]:
        if 0 < near < len(self.ids):
            yield near
        for length in _KEY_LENGTHS:
            ends = self._ends.get(tuple(ids[-length:]), ())
            if ends:
                middle = bisect_left(ends, near)
                yield from ends[max(0, middle - _NUM_NEAR) : middle + _NUM_NEAR]
                return

    def _match_length(self, ids: Sequence[int], place: int) -> int:
        most = min(place, len(ids), LONGEST_MATCH)
        for length in range(most):
            if self.ids[place - 1 - length] != ids[-1 - length]:
                return length
        return most
