"""The services that all sessions of a router share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from models.heads.config import TargetHeads
from router.comparing.comparison import DraftComparison
from router.drafters.draft_choice import DraftChoice
from router.drafters.repeats.text_memory import TextMemory
from router.drafters.rules import LiveSessions
from router.limits import SessionLimits, SpeculationLimits
from router.planning.acceptance import AcceptancePool
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.ports import ConstraintPool, EnginePool, TaskClass
from router.remote.losses import Losses
from router.rollout_places import RolloutPlaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Pools, limits, and what was learnt of cost and fate."""

    target_pool: EnginePool
    draft_pools: Mapping[str, EnginePool]  # engines to draft with, by the name of their pool
    constraint_pool: ConstraintPool | None
    speculation: SpeculationLimits = field(default_factory=SpeculationLimits)
    limits: SessionLimits = field(default_factory=SessionLimits)
    planner: RouterPlanner = field(default_factory=lambda: RouterPlanner(PassCosts()))
    acceptance: dict[tuple[str, TaskClass], AcceptancePool] = field(default_factory=dict)
    memory: TextMemory = field(default_factory=TextMemory)
    comparison: DraftComparison = field(default_factory=DraftComparison)
    heads: TargetHeads | None = None  # that the target has been given
    live: LiveSessions = field(default_factory=LiveSessions)
    rollouts: RolloutPlaces = field(default_factory=RolloutPlaces)
    losses: Losses = field(default_factory=Losses)
    choice: DraftChoice = field(init=False)
    closings: set[asyncio.Task[None]] = field(default_factory=set)  # under way; kept from the GC

    def __post_init__(self) -> None:
        """Make the choice among draft models from their known cost and acceptance."""
        choice = DraftChoice(self.planner.costs, self.acceptance, lambda: self.planner.num_sessions)
        object.__setattr__(self, "choice", choice)
