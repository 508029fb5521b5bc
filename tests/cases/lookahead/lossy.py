"""Links that lose, double and delay messages and break, between the router and all it asks."""

from __future__ import annotations

from typing import Any

from deployments.link.frames import FrameCodec
from loadtest.fuzz.links.lossy import FaultRates, Faults, LossyPool
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    EngineReply,
    EngineRequest,
)
from router.limits import SessionLimits


def lossy_options(faults: Faults) -> dict[str, Any]:
    """Options of `local_service`; every message goes through its codec."""
    engine = (FrameCodec[Any](EngineRequest), FrameCodec[Any](EngineReply))
    constraint = (FrameCodec[Any](ConstraintRequest), FrameCodec[Any](ConstraintReply))

    def link_to(name: str, pool: Any) -> Any:
        return LossyPool(pool, name, faults, constraint if name == "constraint" else engine)

    limits = SessionLimits(
        resend_interval_s=0.05, rejoin_interval_s=0.01, max_losses=60, token_gap_s=10.0
    )
    return {"link_to": link_to, "limits": limits}


def faults_of_every_kind() -> Faults:
    return Faults(7, FaultRates(lose=0.05, double=0.1, delay=0.1, break_=0.3))


def check_all_happened(faults: Faults) -> None:
    assert all(faults.counts[what] for what in ("lost", "doubled", "broken"))
