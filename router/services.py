"""The services that all sessions of a router share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.heads.config import TargetHeads
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Sampling
from models.protocol.token_sequence import TokenSequence
from router.comparing import DraftComparison
from router.drafters.repeats.text_memory import TextMemory
from router.drafters.rules import LiveSessions
from router.limits import SessionLimits, SpeculationLimits
from router.planning.acceptance import AcceptancePool
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.ports import ConstraintPool, EnginePool, PlacedPool, TaskClass
from router.remote.engine import EngineClient, OpenTemplate
from router.remote.grammar import RemoteConstrainer
from router.remote.losses import Losses
from router.rollout_places import RolloutPlaces
from router.types import GenerationRequest


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
    chosen: Counter[tuple[str, TaskClass]] = field(default_factory=Counter)  # drafts
    closings: set[asyncio.Task[None]] = field(default_factory=set)  # under way; kept from the GC


def new_constrainer(
    services: Services, request: GenerationRequest, generated: TokenSequence, max_forced: int
) -> RemoteConstrainer | None:
    """Return the matcher of a request's text; None: it has no grammar.

    Raises:
        UnsupportedGrammar: there is nobody to ask.
    """
    if request.grammar is None:
        return None
    if services.constraint_pool is None:
        raise UnsupportedGrammar("this deployment has no constraint service")
    constrainer = RemoteConstrainer(
        services.constraint_pool,
        request.request_id,
        request.grammar,
        generated,
        services.limits,
        max_forced,
    )
    constrainer.tell(services.losses.constraint)
    return constrainer


def opening(request: GenerationRequest, sampling: Sampling) -> OpenTemplate:
    """Return the terms of a request's session on any engine."""
    return OpenTemplate(
        session_id=request.request_id,
        sampling=sampling,
        eos_ids=request.end_ids,
        prompt_len=len(request.prompt_ids),
        cache_salt=request.cache_salt,
        goes_first=request.goes_first,
    )


def new_client(
    services: Services,
    request: GenerationRequest,
    pool: EnginePool,
    template: OpenTemplate,
    masks: RemoteConstrainer | None,
) -> EngineClient:
    """Return a client of the pool's engines, for a session of the request.

    The target is told more than `template` has: how much room it needs, and the adapter.
    """
    is_target = pool is services.target_pool
    if is_target:
        max_len = len(request.prompt_ids) + request.max_tokens
        template = replace(template, max_len=max_len, adapter=request.adapter)
    if request.prefix_key and isinstance(pool, PlacedPool):
        pool = pool.near(f"{template.adapter} {request.cache_salt} {request.prefix_key}")
    losses = services.losses.of(is_target=is_target)
    return EngineClient(pool, template, services.limits, masks, losses)
