"""Drafts the part of an answer that its client has already, from a stream that broke.

The client waits for what it lacks. So this part has long drafts whatever the request asks: its k
may be 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.token_sequence import TokenSequence
from router.ports import DraftCost, DrafterTraits

KNOWN = DrafterTraits(
    name="known",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 1.0, "free": 1.0, "creative": 1.0},
)

_MOST_TOKENS = 32  # of a draft
_MOST_ROWS = 256  # of a pass, where sessions have all their tokens made again: others wait for it


class KnownTokens:
    """The known part of one answer.

    Args:
        generated: the text so far, without the prompt.
        known: the answer's first tokens, which the client has.
    """

    def __init__(self, generated: TokenSequence, known: tuple[int, ...]) -> None:
        self._generated = generated
        self._known = known
        self._num_compared = len(generated)

    def draft(self, room: int, num_sessions: int) -> Sequence[int]:
        """Return the next draft; empty: the rest is drafted as any text.

        Args:
            room: most tokens of it.
            num_sessions: that were in the target's last pass.
        """
        first, start = self._num_compared, len(self._generated)
        if tuple(self._generated.ids[first:start]) != self._known[first:start]:
            self._known = ()  # the text goes another way
        self._num_compared = start
        most = min(room, _MOST_TOKENS, max(1, _MOST_ROWS // num_sessions))
        return self._known[start : start + most]
