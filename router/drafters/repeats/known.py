"""Drafts the part of an answer that its client has already, from a stream that broke.

The text is made again from its seed, and the client waits for what it lacks. So this part has long
drafts whatever the request asks: its k may be 0. Only the client knows the text, as the request's
prediction. A draft of which little is accepted shows that it does not, and there is no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.prediction import PredictionDrafter

# A draft. With 8 streams that come back at once a pass has 8 times as many rows, and others wait.
_MOST_TOKENS = 32


class KnownText:
    """The known part of one answer.

    Args:
        committed: the session's text, of which only the prompt is there yet.
        predicted: drafts from the prediction.
        num_tokens: of the answer that the client has.
    """

    def __init__(
        self, committed: TokenSequence, predicted: PredictionDrafter, num_tokens: int
    ) -> None:
        self._committed = committed
        self._predicted = predicted
        self._end = len(committed) + num_tokens
        self._num_drafted = 0  # in the last round

    def draft(self, room: int, num_accepted: int) -> Sequence[int]:
        """Return the next draft; empty: the rest is drafted as any text.

        Args:
            room: most tokens of it.
            num_accepted: tokens of the draft before, if there was one.
        """
        if 2 * num_accepted < self._num_drafted:
            self._end = 0
        num_tokens = min(room, self._end - len(self._committed), _MOST_TOKENS)
        tokens: Sequence[int] = ()
        if num_tokens > 0:
            tokens = self._predicted.look(self._committed, num_tokens).tokens
        self._num_drafted = len(tokens)
        return tokens
