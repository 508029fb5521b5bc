"""Drafting token after token by what drafts with the model, for some sessions at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.device import fetch
from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import OutOfBlocks
from models.protocol.messages import Sampling
from models.sampling.draws import rank_from_logits
from models.scheduler.sessions import Session

# Candidates of a session's draft, by place and rank: the first of each place are its draft.
Ranked = list[list[int]]


def has_newest_state(session: Session) -> bool:
    """Return whether the state that gave its newest token, whose row is the next, is there."""
    newest = len(session.tokens) - 1
    return session.num_computed_tokens == newest == session.states.stop > session.states.first


def rows_of(session: Session, start: int, stop: int, *, num_logits: int) -> SequenceRows:
    """Rows [start, stop) of its tokens."""
    return SequenceRows(session.table, start, session.tokens.ids[start:stop], num_logits)


def reserve(
    runner: ModelRunner, sessions: Sequence[Session], starts: Sequence[int], num_tokens: int
) -> int:
    """Tokens of drafts, at most `num_tokens`, that there is room for; 0: there is none.

    There are blocks then for all rows from `starts` on, which nobody else reads. The next pass
    takes or gives back what it needs itself.
    """
    longest = max(len(each.tokens) for each in sessions)
    num_tokens = min(num_tokens, max(1, runner.max_model_len - longest))
    for session, start in zip(sessions, starts, strict=True):
        stop = len(session.tokens) + num_tokens - 1
        try:
            session.table.resize(stop)
        except OutOfBlocks:
            return 0
        if runner.pool.writes_shared(session.table.block_ids, start, stop):
            return 0
    return num_tokens


def draw_steps(
    runner: ModelRunner,
    spans: Mapping[Session, tuple[int, int]],
    samplings: Sequence[Sampling],
    states: Tensor | None,
    num_tokens: int,
    num_ranks: int = 1,
) -> list[Ranked]:
    """Candidates for `num_tokens` ids behind each session's tokens. Waits for the device once.

    Each token follows the first candidates for those before it.

    Args:
        runner: has what drafts.
        spans: of each session the rows [start, end of its tokens) to begin with.
        samplings: of each session.
        states: [rows, F] for these; None: none are taken.
        num_tokens: that `reserve` has said.
        num_ranks: candidates for each.
    """
    lengths = [length for _, length in spans.values()]
    rows = [rows_of(each, *span, num_logits=1) for each, span in spans.items()]
    logits, states = runner.draft_pass(rows, states)
    ranked = [rank_from_logits(logits, samplings, lengths, num_ranks)]
    for step in range(1, num_tokens):
        rows = [
            SequenceRows(each.table, length + step - 1, [0], 1)
            for each, length in zip(spans, lengths, strict=True)
        ]
        logits, states = runner.draft_pass(rows, states, ranked[-1][:, 0].contiguous())
        positions = [length + step for length in lengths]
        ranked.append(rank_from_logits(logits, samplings, positions, num_ranks))
    ids: list[Ranked] = fetch(torch.stack(ranked, dim=1))
    return ids
