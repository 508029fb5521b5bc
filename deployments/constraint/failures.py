"""Answers to requests that no child can answer now; their senders ask again, or elsewhere."""

from __future__ import annotations

from models.protocol.grammars import GrammarCheck
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    GrammarClose,
    GrammarCommit,
    GrammarOpen,
    GrammarRefused,
    GrammarStale,
    MaskMiss,
    MaskRequest,
)
from models.protocol.rewards import RewardRefused, RewardScore


def full(num_waiting: int) -> str:
    """Why a request is refused where too many wait."""
    return f"{num_waiting} requests are waiting, which is the limit"


def failed(request: ConstraintRequest, reason: str) -> ConstraintReply | None:
    """The answer to a request that no child can answer now: the caller opens and replays."""
    match request:
        case MaskRequest():
            return MaskMiss(
                session_id=request.session_id,
                ticket=request.ticket,
                reason="failed",
                message=reason,
            )
        case GrammarCommit():
            return GrammarStale(session_id=request.session_id, seq=request.seq, is_unknown=True)
        case GrammarOpen() | GrammarCheck():
            return GrammarRefused(
                session_id=request.session_id, message=reason, is_client_error=False
            )
        case RewardScore():
            return RewardRefused(
                session_id=request.session_id,
                seq=request.seq,
                message=reason,
                is_client_error=False,
            )
        case GrammarClose():
            return None
