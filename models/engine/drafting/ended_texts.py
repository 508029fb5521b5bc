"""Texts of sessions that ended on a draft engine, kept for as long as somebody compares models.

Only texts that another draft model can answer exactly are kept. Texts under a grammar are not,
because masks of passed places are not kept. Neither are texts whose rule gives drafts noise of
their own. Knows no torch: the process that asks for them holds no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from models.protocol.messages import Open
from models.protocol.rules import RULES

_MAX_TEXTS = 64  # kept until they are taken; the oldest go


@dataclass(frozen=True, slots=True)
class EndedText:
    """One session's text.

    Attributes:
        opened: its terms.
        token_ids: prompt and answer, as far as they were committed.
    """

    opened: Open
    token_ids: list[int]


class EndedTexts:
    """The newest texts, from the engine's thread to any other."""

    def __init__(self) -> None:
        self._texts: deque[EndedText] = deque(maxlen=_MAX_TEXTS)
        self._keeps = False

    def keep(self, *, is_on: bool) -> None:
        """Keep texts from now on, or forget all. From any thread."""
        self._keeps = is_on
        self._texts.clear()

    def note(self, opened: Open, token_ids: Sequence[int]) -> None:
        """Note that a session has ended."""
        is_exact = opened.constraint is None
        is_exact = is_exact and not RULES[opened.sampling.verification].depends_on_draft
        if self._keeps and is_exact and len(token_ids) > opened.prompt_len:
            self._texts.append(EndedText(opened, list(token_ids)))

    def take(self) -> list[EndedText]:
        """Return the texts since the last call, oldest first. From any thread."""
        taken = []
        while True:
            try:
                taken.append(self._texts.popleft())
            except IndexError:
                return taken
