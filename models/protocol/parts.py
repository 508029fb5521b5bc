"""Parts that several messages carry: times of passes, logprobs of tokens. Needs msgspec only."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One token by the model's own distribution: log-softmax of the logits before any processor.

    `rank` counts the tokens that are at least as likely: 1 for the likeliest.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob) of the likeliest, falling


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine spent the time of one answer, and what a pass costs now. Milliseconds."""

    queue_ms: float = 0.0  # in the engine outside passes: batch window, planning, others' passes
    pass_ms: float = 0.0  # forward and sampling of the passes this answer took part in
    mask_ms: float = 0.0  # waiting for masks, beyond the passes
    num_rows: int = 0  # rows of the last pass, all sessions together
    num_side_rows: int = 0  # of these, those of side paths of drafts, which take longer
    num_sessions: int = 0  # sessions in the last pass
