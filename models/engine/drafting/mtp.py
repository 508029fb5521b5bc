"""Drafts of an MTP or EAGLE-3 head: token after token, by a layer with keys in the cache.

A session's row at position p is made of the state that gave token p. So rows of true states follow
the model's by one. They are computed when a draft is wanted, and the last one gives the draft's
first token. They are also computed when a block is full: others may find it, and it is never
written again. Rows of a draft lie behind them until true ones replace them.

Keys decide what is drafted, never what is accepted. So zeros serve for a missing state. The prefix
cache has a block's keys and not the state behind its last row. Rows of generated tokens are left
out while drafts do not pay, as with many sessions on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.engine.drafting.steps import (
    Ranked,
    draw_steps,
    has_newest_state,
    reserve,
    rows_of,
)
from models.engine.runner import ModelRunner
from models.protocol.messages import MAX_DRAFT_TOKENS, Sampling
from models.scheduler.sessions import PlannedRows, Session


class MtpDrafter:
    """Implements `OwnDrafter`.

    Args:
        runner: has the layer.
        num_tokens: the longest draft.
    """

    has_all_paths = False

    def __init__(self, runner: ModelRunner, num_tokens: int) -> None:
        self._runner = runner
        self.num_tokens, self.max_tokens = num_tokens, MAX_DRAFT_TOKENS

    def keep_states(self, rows: Sequence[PlannedRows], states: Tensor) -> None:
        """See `OwnDrafter`: all but those of forks."""
        offset = 0
        for planned in rows:
            session, stop = planned.session, offset + planned.num_rows
            if session.taker is None:
                session.states.add(planned.start, states[offset:stop])
                session.states.drop(session.num_head_tokens - 1)
            offset = stop

    def can_draft(self, session: Session) -> bool:
        """See `OwnDrafter`."""
        return has_newest_state(session)

    def fill_blocks(self, sessions: Sequence[Session], *, is_used: bool) -> None:
        """See `OwnDrafter`. Whoever has states goes along, so that few passes fill all."""
        size = self._runner.pool.block_size
        waiting = [each for each in dict.fromkeys(sessions) if each.taker is None]
        full = [
            each
            for each in waiting
            if each.num_head_tokens // size < each.num_computed_tokens // size
        ]
        # The newest state stays behind: the first token of a draft is made of it.
        stops = {each: each.num_computed_tokens for each in waiting}
        if not is_used:
            stops = {each: min(stops[each], each.opened.prompt_len // size * size) for each in full}
        stops = {each: stop for each, stop in stops.items() if stop > each.num_head_tokens}
        if full and stops:
            self._write(stops)
        for session in full:
            if session.num_head_tokens < session.num_computed_tokens:
                self._leave_out(session, session.num_computed_tokens)

    def rank(
        self,
        sessions: Sequence[Session],
        samplings: Sequence[Sampling],
        num_tokens: int,
        num_ranks: int,
    ) -> list[Ranked]:
        """See `OwnDrafter`; nothing for anybody where the cache has no room."""
        starts = [each.num_head_tokens for each in sessions]
        num_tokens = reserve(self._runner, sessions, starts, num_tokens)
        if not num_tokens:
            return [[] for _ in sessions]
        num_rows = sum(len(each.tokens) - each.num_head_tokens for each in sessions)
        if num_rows > self._runner.max_num_batched_tokens:
            self._write({each: each.num_computed_tokens for each in sessions})
        spans = {each: (each.num_head_tokens, len(each.tokens)) for each in sessions}
        ranked = draw_steps(self._runner, spans, samplings, _states(spans), num_tokens, num_ranks)
        for session, (_, length) in spans.items():
            _note_written(session, length)
        return ranked

    def _leave_out(self, session: Session, stop: int) -> None:
        """Rows before `stop` will never be computed: blocks without any have zeros."""
        first, last = map(self._runner.pool.blocks_for, (session.num_head_tokens, stop))
        self._runner.clear_draft_keys(session.table.block_ids[first:last])
        _note_written(session, stop)

    def _write(self, stops: Mapping[Session, int]) -> None:
        """Compute rows of true states, of each session those before its stop."""
        pool, limit = self._runner.pool, self._runner.max_num_batched_tokens
        spans: dict[Session, tuple[int, int]] = {}
        num_rows = 0

        def compute() -> None:
            rows = [rows_of(each, *span, num_logits=0) for each, span in spans.items()]
            self._runner.draft_pass(rows, _states(spans))
            for session, (_, stop) in spans.items():
                _note_written(session, stop)
            spans.clear()

        for session, stop in stops.items():
            start = session.num_head_tokens
            is_empty = session.states.stop == session.states.first
            if is_empty or pool.writes_shared(session.table.block_ids, start, stop):
                session.num_head_tokens = max(start, stop)  # as they are; never asked for again
                continue
            while start < stop:
                spans[session] = start, min(stop, start + limit - num_rows)
                num_rows += spans[session][1] - start
                start = spans[session][1]
                if num_rows == limit:
                    compute()
                    num_rows = 0
        if spans:
            compute()


def _states(spans: Mapping[Session, tuple[int, int]]) -> Tensor:
    """Return for each row the state of the row before it, [rows, F]."""
    return torch.cat([each.states.take(a - 1, b - 1) for each, (a, b) in spans.items()])


def _note_written(session: Session, stop: int) -> None:
    session.num_head_tokens = stop
    session.states.drop(stop - 1)
