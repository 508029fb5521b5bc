"""Drafts the part of an answer that its client has already, from a stream that broke.

The client waits for what it lacks. So this part has long drafts whatever the request asks: its k
may be 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.token_sequence import TokenSequence

_MOST_TOKENS = 32  # of a draft
_MOST_ROWS = 256  # of a pass, if all sessions on the target come back at once: others wait for it


class KnownTokens:
    """The known part of one answer.

    Args:
        generated: the text so far, without the prompt.
        known: the answer's first tokens, which the client has.
    """

    def __init__(self, generated: TokenSequence, known: Sequence[int]) -> None:
        self._generated = generated
        self._known = known
        self._num_drafted = 0  # in the last round

    def draft(self, room: int, num_accepted: int, num_sessions: int) -> Sequence[int]:
        """Return the next draft; empty: the rest is drafted as any text.

        Args:
            room: most tokens of it.
            num_accepted: tokens of the draft before, if there was one.
            num_sessions: that were in the target's last pass.
        """
        if num_accepted < self._num_drafted:
            self._known = ()  # the text goes another way
        most = max(1, min(_MOST_TOKENS, _MOST_ROWS // num_sessions, room))
        start = len(self._generated)
        tokens = self._known[start : start + most] if room > 0 else ()
        self._num_drafted = len(tokens)
        return tokens
