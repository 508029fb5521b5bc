"""Drafts by the target's own first layers, whose keys are written again when they are verified."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.engine.drafting.steps import Ranked, draw_steps, reserve
from models.engine.runner import ModelRunner
from models.protocol.messages import MAX_DRAFT_TOKENS, Sampling
from models.scheduler.sessions import PlannedRows, Session


class ExitDrafter:
    """Implements `OwnDrafter`. No states are kept.

    Args:
        runner: has the first layers.
        num_tokens: the longest draft.
    """

    has_all_paths = False

    def __init__(self, runner: ModelRunner, num_tokens: int) -> None:
        self._runner = runner
        self.num_tokens, self.max_tokens = num_tokens, MAX_DRAFT_TOKENS

    def keep_states(self, rows: Sequence[PlannedRows], states: Tensor) -> None:
        """See `OwnDrafter`: they are not asked for."""

    def can_draft(self, session: Session) -> bool:
        """See `OwnDrafter`."""
        return session.num_computed_tokens == len(session.tokens) - 1

    def fill_blocks(self, sessions: Sequence[Session], *, is_used: bool) -> None:
        """See `OwnDrafter`: there are no keys but the model's."""

    def rank(
        self,
        sessions: Sequence[Session],
        samplings: Sequence[Sampling],
        num_tokens: int,
        num_ranks: int,
    ) -> list[Ranked]:
        """See `OwnDrafter`; nothing for anybody where the cache has no room."""
        starts = [each.num_computed_tokens for each in sessions]
        num_tokens = reserve(self._runner, sessions, starts, num_tokens)
        if not num_tokens:
            return [[] for _ in sessions]
        spans = {each: (each.num_computed_tokens, len(each.tokens)) for each in sessions}
        return draw_steps(self._runner, spans, samplings, None, num_tokens, num_ranks)
