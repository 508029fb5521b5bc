"""Drafts from a text that the client says its answer will mostly repeat: a file with a few edits.

The drafter keeps to its place in the predicted text and goes on from there. Where the answer leaves
it, the last tokens are looked for in the predicted text, and of the places where most of them match
the one nearest to where it was counts. How likely its tokens are is learnt from the text alone, by
the length of the match (`match_odds`), apart from other repeated text: who predicts an answer is
mostly right.

Nobody but the client knows whether the prediction is an earlier answer of the same seed. So it is
no text to draft from under a rule by which the text depends on the draft; `router.session` sees to
that. The idea is OpenAI's `prediction`, known elsewhere as speculative edits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import before_eos
from router.drafters.match_odds import LearningOdds, MatchOdds, cells
from router.ports import DraftCost, DrafterTraits, FreeDraft

PREDICTION = DrafterTraits(
    name="prediction",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 0.9, "free": 0.9, "creative": 0.9},
)

_KEY_LENGTHS = (4, 1)  # tokens; looked for in this order
_NUM_NEAR = 4  # places on either side of the expected one that a look compares
_LONGEST = 24  # longer matches count as that long
_AT_START = 8  # before its first token a prediction is trusted like a match of so many


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
        """Where the predicted text goes on after `ids`, and how many tokens before that match.

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
        most = min(place, len(ids), _LONGEST)
        for length in range(most):
            if self.ids[place - 1 - length] != ids[-1 - length]:
                return length
        return most


class PredictionDrafter:
    """Implements `ports.FreeDrafter` for one session.

    Args:
        committed: the session's text, of which only the prompt is there yet.
        predicted: what the answer is said to be.
        odds: of the session.
        eos_ids: a draft ends before one of these: nothing follows it.
    """

    def __init__(
        self,
        committed: TokenSequence,
        predicted: PredictedText,
        odds: MatchOdds,
        eos_ids: Collection[int] = (),
    ) -> None:
        self._committed = committed
        self._predicted = predicted
        self._odds = LearningOdds(odds)
        self._eos_ids = frozenset(eos_ids)
        self._start = len(committed)  # of the answer
        self._shift = -self._start  # from a place in the text to one in the prediction

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        """See `ports.FreeDrafter.look`."""
        self._odds.learn(self._committed.ids)
        ids = text.ids
        if len(ids) <= self._start:
            place, length = 0, _AT_START
        else:
            said = ids[max(self._start, len(ids) - _LONGEST) :]
            place, length = self._predicted.place_after(said, len(ids) + self._shift)
            if length == 0:
                return FreeDraft()
            self._shift = place - len(ids)
        tokens = before_eos(self._predicted.ids[place : place + num_tokens], self._eos_ids)
        asked = cells(length, [1.0] * len(tokens))
        self._odds.note(ids, len(self._committed), tokens, asked)
        return FreeDraft(tokens, self._odds.survival(asked))
