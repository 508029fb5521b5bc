"""Parts that several messages have: headers, times, logprobs, tests. Needs msgspec only."""

from __future__ import annotations

import msgspec


class OfSession(msgspec.Struct, frozen=True, kw_only=True):
    """A message to one life of a process, about one session."""

    session_id: str
    epoch: int


class Question(OfSession, frozen=True, kw_only=True):
    """Make the session's text exactly `base_len` tokens long, append `tokens`, and answer.

    An engine needs one token at least.
    """

    seq: int
    base_len: int
    prefix_hash: int
    tokens: list[int]  # committed tokens from base_len on


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to the message of this number."""

    session_id: str
    seq: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One token by the model's own distribution: log-softmax of the logits before any processor.

    `rank` counts the tokens that are at least as likely: 1 for the likeliest.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob) of the likeliest, falling


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an engine's time for one answer, in ms, and the size of its last pass."""

    queue_ms: float = 0.0  # in the engine outside passes: batch window, planning, others' passes
    pass_ms: float = 0.0  # forward and sampling of the passes this answer took part in
    mask_ms: float = 0.0  # waiting for masks, beyond the passes
    num_rows: int = 0  # rows of the last pass, all sessions together
    num_sessions: int = 0  # sessions in the last pass


class DraftTest(msgspec.Struct, frozen=True, array_like=True):
    """One token of a draft as the target tested it.

    Args:
        token: of the draft.
        target_prob: p, by what the target samples from at its place.
        draft_prob: q, by what it was sampled from; None: the rule needs none.
        noise: u, uniform in (0, 1); it is accepted where u q < p. None: the rule draws none.
        is_accepted: None: one before it was rejected, so it was not looked at.
        num_allowed: tokens that a constraint allows at its place; None: there is none.
    """

    token: int
    target_prob: float
    draft_prob: float | None
    noise: float | None
    is_accepted: bool | None
    num_allowed: int | None


class Inspection(msgspec.Struct, frozen=True):
    """The target's view of the rows of one answer, for a sender that asks for it.

    `num_allowed` has an entry for each token that commits; it is empty without a constraint.
    """

    tests: list[DraftTest] = []
    num_allowed: list[int] = []
