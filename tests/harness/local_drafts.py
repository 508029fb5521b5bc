"""Draft models in this process that take each other's place, as those of a replica do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deployments.config.live_draft import WantedDraft
from deployments.config.schema import ModelConfig
from deployments.engine.swap import DraftSwap
from deployments.local.pool import LocalEnginePool
from models.engine.draft import DraftEngine
from models.engine.ended_texts import EndedText
from models.engine.runner import ModelRunner
from models.grammar.masks import NoMaskSource
from router.ports import EngineLease, EnginePool

_POLL_S = 0.01


async def eventually(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    for _ in range(round(limit_s / _POLL_S)):
        if is_so():
            return
        await asyncio.sleep(_POLL_S)
    raise TimeoutError(f"not so within {limit_s:g} s")


class LocalDraft:
    """Implements `swap.DraftModel` over an engine in a thread."""

    def __init__(self, model: ModelConfig) -> None:
        runner = ModelRunner(model)
        self.engine = DraftEngine(runner, NoMaskSource(), epoch=1)
        self.engine_pool = LocalEnginePool(self.engine, epoch=1, max_model_len=runner.max_model_len)
        self.path = model.model_path
        self.lost = ""
        self.is_ended = False

    @property
    def pool(self) -> EnginePool:
        return self.engine_pool

    @property
    def num_served(self) -> int:
        """Leases that it ever gave."""
        return self.engine_pool.stats().num_leases

    async def emptied(self) -> None:
        await eventually(lambda: bool(self.lost) or self.engine_pool.stats().num_sessions == 0)

    async def keep_texts(self, *, is_on: bool) -> None:
        self.engine.ended_texts.keep(is_on=is_on)

    async def take_texts(self) -> list[EndedText]:
        return self.engine.ended_texts.take()

    def die(self) -> None:
        """As its process would."""
        self.lost = "killed"
        self.engine_pool.fail(self.lost)

    def end(self) -> None:
        self.is_ended = True
        self.engine_pool.fail("freed")


@dataclass
class LocalDrafts:
    """What a router leases: whichever model serves. `made` are all that there ever were."""

    swap: DraftSwap[LocalDraft]
    made: list[LocalDraft] = field(default_factory=list)

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        return await self.swap.serving.pool.lease(session_id, timeout_s=timeout_s)

    async def until(self, *phases: str) -> None:
        """Wait until a swap is in one of these."""
        await eventually(lambda: self.swap.state.phase in phases)

    async def settled(self) -> str:
        """The phase that a swap ends in, once it has, and the other model is freed."""
        await self.until("promoted", "dropped")
        await eventually(lambda: len(self.swap.models) == 1)
        return self.swap.state.phase


def model_at(path: str | Path) -> ModelConfig:
    return ModelConfig(model_path=str(path), max_model_len=512, kv_cache_tokens=16384)


@asynccontextmanager
async def local_drafts(first: str | Path, *later: str | Path) -> AsyncIterator[LocalDrafts]:
    """`first` serves until another is wanted.

    Models at `later` are loaded now and handed out when they are wanted: transformers changes
    torch's dtype for the whole process while it loads, under the passes of other threads. In a
    replica it is another process.
    """
    made = [LocalDraft(model_at(first))]
    ready = [LocalDraft(model_at(path)) for path in later]

    async def load(wanted: WantedDraft) -> LocalDraft:
        await asyncio.sleep(0.02)
        found = [draft for draft in ready if draft.path == wanted.model.model_path]
        draft = found[0] if found else LocalDraft(wanted.model)
        if found:
            ready.remove(draft)
        made.append(draft)
        return draft

    drafts = LocalDrafts(DraftSwap(made[0], load, (ValueError, OSError)), made)
    try:
        yield drafts
    finally:
        await drafts.swap.close()
        for draft in (*made, *ready):
            await draft.engine_pool.close()
