"""Proposals and verdicts as engines send them."""

from __future__ import annotations

from typing import Any

from models.protocol.messages import Proposal, Timing, Verdict
from tests.fakes.router import TIMING


def proposal(
    num_tokens: int,
    step_ms: float,
    *,
    pass_ms: float | None = None,
    num_sessions: int = 1,
    num_ahead: int = 0,
) -> Proposal:
    """Make a draft; `pass_ms` is of its passes together, None: a step for each token."""
    in_steps_ms = num_tokens * step_ms
    return Proposal(
        session_id="s",
        seq=1,
        tokens=list(range(num_tokens)),
        timing=Timing(
            pass_ms=in_steps_ms if pass_ms is None else pass_ms, num_sessions=num_sessions
        ),
        step_ms=step_ms,
        num_ahead=num_ahead,
    )


def verdict(num_accepted: int = 0, token: int = 1, **changes: Any) -> Verdict:
    """Make a verdict, the only one on its message but for what `changes` say."""
    usual: dict[str, Any] = {"session_id": "s", "seq": 1, "part": 0, "is_last": True}
    fields = usual | {"timing": TIMING} | changes
    return Verdict(num_accepted=num_accepted, token=token, **fields)
