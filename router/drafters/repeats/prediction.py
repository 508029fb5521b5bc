"""Drafts from a text that the client says its answer will mostly repeat: a file with a few edits.

The drafter keeps to its place in the predicted text (`router.predicted_text`) and goes on from
there. The probability of its tokens is learnt from the text alone, by the length of the match
(`match_odds`). It is kept apart from other repeated text, because predictions are mostly right.

Nobody but the client knows whether the prediction is an earlier answer of the same seed. So it must
not be drafted from under a rule by which the text depends on the draft. `router.session` sees to
that. The idea is OpenAI's `prediction`, known elsewhere as speculative edits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import before_eos
from router.drafters.repeats.match_odds import MatchOdds, cells
from router.ports import DraftCost, DrafterTraits, FreeDraft
from router.predicted_text import LONGEST_MATCH, PredictedText

PREDICTION = DrafterTraits(
    name="prediction",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 0.9, "free": 0.9, "creative": 0.9},
)

_AT_START = 8  # before its first token a prediction is trusted like a match of so many


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
        self._odds = odds
        self._eos_ids = frozenset(eos_ids)
        self._start = len(committed)  # place where the answer begins
        self._shift = -self._start  # from a place in the text to one in the prediction

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        """See `ports.FreeDrafter.look`."""
        self._odds.learn(self._committed.ids)
        ids = text.ids
        if len(ids) <= self._start:
            place, length = 0, _AT_START
        else:
            said = ids[max(self._start, len(ids) - LONGEST_MATCH) :]
            place, length = self._predicted.place_after(said, len(ids) + self._shift)
            if length == 0:
                return FreeDraft()
            self._shift = place - len(ids)
        tokens = before_eos(self._predicted.ids[place : place + num_tokens], self._eos_ids)
        asked = cells(length, [1.0] * len(tokens))
        self._odds.note(ids, len(self._committed), tokens, asked)
        return FreeDraft(tokens, self._odds.survival(asked))

    def best_case(self, text: TokenSequence, num_tokens: int) -> Sequence[float]:
        """See `ports.FreeDrafter.best_case`."""
        return [1.0] * num_tokens
