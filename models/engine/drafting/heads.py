"""Drafts of Medusa heads: all their tokens at once, from one state of each session."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.device import fetch
from models.engine.drafting.steps import Ranked, has_newest_state
from models.engine.runner import ModelRunner
from models.protocol.messages import Sampling
from models.sampling.draws import rank_from_logits
from models.scheduler.sessions import PlannedRows, Session


class HeadsDrafter:
    """Implements `OwnDrafter`. The heads have no keys.

    Args:
        runner: has them.
    """

    has_all_paths = True

    def __init__(self, runner: ModelRunner) -> None:
        assert runner.heads is not None, "heads drafts without heads"
        self._runner = runner
        self.num_tokens = self.max_tokens = len(runner.heads)

    def keep_states(self, rows: Sequence[PlannedRows], states: Tensor) -> None:
        """See `OwnDrafter`: those of rows that are sampled from."""
        stop = 0
        for planned in rows:
            stop += planned.num_rows
            if num := planned.num_logits:
                first = planned.start + planned.num_rows - num
                planned.session.states.add(first, states[stop - num : stop])
                planned.session.states.drop(first)

    def can_draft(self, session: Session) -> bool:
        """See `OwnDrafter`."""
        return has_newest_state(session)

    def fill_blocks(self, sessions: Sequence[Session], *, is_used: bool) -> None:
        """See `OwnDrafter`: there is nothing to do."""

    def rank(
        self,
        sessions: Sequence[Session],
        samplings: Sequence[Sampling],
        num_tokens: int,
        num_ranks: int,
    ) -> list[Ranked]:
        """See `OwnDrafter`."""
        places = range(num_tokens)
        newest = [each.states.take(each.states.stop - 1, each.states.stop) for each in sessions]
        logits = self._runner.head_logits(torch.cat(newest), num_tokens)
        terms = [sampling for sampling in samplings for _ in places]
        positions = [len(each.tokens) + place for each in sessions for place in places]
        ranked = rank_from_logits(logits, terms, positions, num_ranks)
        ids: list[Ranked] = fetch(ranked.view(len(sessions), num_tokens, num_ranks))
        return ids
