"""Drafts the part of an answer that its client has already, from a stream that broke.

The text is made again from its seed, and the client waits for what it lacks. So this part has long
drafts whatever the request asks: its k may be 0. The client knows text, not tokens. A sampled text
may be spelt in other tokens than the usual ones. So each draft spells anew what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.token_sequence import TokenSequence
from router.types import KnownAnswer

_MOST_TOKENS = 32  # of a draft
_MOST_ROWS = 256  # of a pass, if all sessions on the target come back at once: others wait for it
# Tokens that are drafted for nothing until the client is not believed; an accepted one is worth 4.
_PATIENCE, _WORTH = 64, 4


class KnownText:
    """The known part of one answer.

    Args:
        generated: the text so far, without the prompt.
        known: what the client has.
    """

    def __init__(self, generated: TokenSequence, known: KnownAnswer) -> None:
        self._generated = generated
        self._known = known
        self._num_drafted = 0  # in the last round
        self._patience = _PATIENCE

    def draft(self, room: int, num_accepted: int, num_sessions: int) -> Sequence[int]:
        """Return the next draft; empty: the rest is drafted as any text.

        Args:
            room: most tokens of it.
            num_accepted: tokens of the draft before, if there was one.
            num_sessions: that were in the target's last pass.
        """
        if self._num_drafted > 0:
            self._patience += _WORTH * num_accepted - self._num_drafted
        most = max(1, min(_MOST_TOKENS, _MOST_ROWS // num_sessions))
        num_tokens = min(room, most, self._known.num_tokens - len(self._generated))
        tokens: Sequence[int] = ()
        if num_tokens > 0 and self._patience >= 0:
            tokens = self._known.tokens_after(self._generated.ids, num_tokens)
        self._num_drafted = len(tokens)
        return tokens
