"""A whole service over lossy links: real engines in threads of their own, grammars, the router."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from deployments.link.frames import FrameCodec
from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.pair import MAX_MODEL_LEN
from loadtest.fuzz.engines.world import (
    MAX_K,
    Engines,
    blocks_needed,
    fresh_engines,
    left_tasks,
)
from loadtest.fuzz.links.lossy import Faults, LossyMasks, LossyPool, grammar_close
from models.grammar.host import GrammarHost
from models.grammar.masks import LocalMaskSource
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    EngineReply,
    EngineRequest,
)
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.services import Services
from router.types import GenerationRequest

_FREED_LIMIT_S = 10.0
_MASK_WAIT_S = 0.1  # lost masks are missed after this
# A lost message is soon sent again; the limits themselves are generous, for a machine with others.
LIMITS = SessionLimits(
    queue_wait_s=20.0,
    failover_s=40.0,
    max_losses=60,
    first_token_s=20.0,
    token_gap_s=10.0,
    draft_ms=500,
    resend_interval_s=0.05,
    rejoin_interval_s=0.01,
)

_ENGINE_CODECS: tuple[FrameCodec[EngineRequest], FrameCodec[EngineReply]] = (
    FrameCodec(EngineRequest),
    FrameCodec(EngineReply),
)
_CONSTRAINT_CODECS: tuple[FrameCodec[ConstraintRequest], FrameCodec[ConstraintReply]] = (
    FrameCodec(ConstraintRequest),
    FrameCodec(ConstraintReply),
)


@dataclass(frozen=True, slots=True)
class Crowd:
    """A running service; `outcome` gets what was left when it ends."""

    generator: SpeculativeGenerator
    engines: Engines
    faults: Faults
    outcome: Outcome


@asynccontextmanager
async def crowd(
    rng: random.Random, requests: list[GenerationRequest], host: GrammarHost, faults: Faults
) -> AsyncIterator[Crowd]:
    """Serve `requests` with few KV blocks; at the end look at what they left."""
    before = asyncio.all_tasks()
    constraint = LocalConstraintPool(host)
    least = max(blocks_needed(request) for request in requests)
    engines = fresh_engines(
        LossyMasks(LocalMaskSource(constraint.host), "target", faults),
        LossyMasks(LocalMaskSource(constraint.host), "draft", faults),
        target_blocks=least + rng.randint(0, 16),
        draft_blocks=least + rng.randint(0, 16),
        mask_wait_s=_MASK_WAIT_S,
        queued_interval_s=0.05,
    )
    target = LocalEnginePool(engines.target, epoch=1, max_model_len=MAX_MODEL_LEN)
    draft = LocalEnginePool(engines.draft, epoch=1, max_model_len=MAX_MODEL_LEN)
    lossy = (
        LossyPool(target, "target", faults, _ENGINE_CODECS),
        LossyPool(draft, "draft", faults, _ENGINE_CODECS),
        LossyPool(constraint, "constraint", faults, _CONSTRAINT_CODECS, grammar_close),
    )
    services = Services(
        target_pool=lossy[0],
        draft_pools={POOL: lossy[1]},
        constraint_pool=lossy[2],
        speculation=SpeculationLimits(
            max_num_speculative_tokens=MAX_K, run_on_tokens=rng.choice((0, 2, 16))
        ),
        limits=LIMITS,
    )
    outcome = Outcome()
    generator = SpeculativeGenerator(services, max_model_len=MAX_MODEL_LEN)
    try:
        yield Crowd(generator, engines, faults, outcome)
        outcome.complaints += await _left_while_running((target, draft), lossy)
    finally:
        await target.close()
        await draft.close()
        await constraint.close()
    outcome.complaints += engines.held(host) + await left_tasks(before)
    outcome.counts["preemptions"] += engines.target.load().num_preemptions
    outcome.counts.update({f"messages {what}": n for what, n in faults.counts.items()})


async def _left_while_running(
    engines: Sequence[LocalEnginePool], pools: Sequence[LossyPool[Any, Any]]
) -> list[str]:
    """Sessions, KV blocks and leases that are not given back within the limit."""
    deadline = asyncio.get_running_loop().time() + _FREED_LIMIT_S
    while True:
        stats = [pool.stats() for pool in engines]
        left = [
            f"{one.num_sessions} sessions and {one.num_used_blocks} KV blocks are still held"
            for one in stats
            if one.num_sessions or one.num_used_blocks
        ]
        left += [
            f"{pool.num_open} leases of {pool.name} are left" for pool in pools if pool.num_open
        ]
        if not left or asyncio.get_running_loop().time() > deadline:
            return left
        await asyncio.sleep(0.01)
