"""Answers to requests that no child can answer now; their senders ask again, or elsewhere."""

from __future__ import annotations

import logging

from deployments.constraint.process import Death
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

logger = logging.getLogger(__name__)


def full(num_waiting: int) -> str:
    """Why a request is refused where too many wait."""
    return f"{num_waiting} requests are waiting, which is the limit"


def refused(
    asked: ConstraintRequest, reason: str, *, is_client_error: bool = False
) -> GrammarRefused:
    """Return the refusal of a grammar."""
    return GrammarRefused(
        session_id=asked.session_id, message=reason, is_client_error=is_client_error
    )


def failed(request: ConstraintRequest, reason: str) -> ConstraintReply | None:
    """Answer a request that no child can answer now.

    The caller opens and replays.
    """
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
            return refused(request, reason)
        case RewardScore():
            return RewardRefused(
                session_id=request.session_id,
                seq=request.seq,
                message=reason,
                is_client_error=False,
            )
        case GrammarClose():
            return None


def log_death(index: int, death: Death) -> None:
    """Log the session whose message the child died in, but not its grammar: a client wrote that."""
    culprit = getattr(death.culprit, "session_id", None)
    fields = {"child": index, "session_id": culprit, "num_unanswered": len(death.unanswered)}
    logger.warning("constraint child %d ended: %s", index, death.reason, extra=fields)
