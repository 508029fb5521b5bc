"""The service's real parts in this process: runners loaded once, engines and pools fresh per case.

A case that begins with empty engines can be repeated alone. Nothing here is a stand-in: engines,
grammar host, router and pools are those that serve. The only difference from a deployment is that
no process and no socket lies between them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache

from loadtest.fuzz.engines.pair import MAX_MODEL_LEN, pair_folder
from models.config import EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.host import GrammarHost
from models.grammar.masks import MaskSource
from models.kv.block_pool import BlockPool
from router.types import GenerationRequest

BLOCK_SIZE = 16
MAX_K = 8
_NUM_BLOCKS = 256
MAX_BATCH_ROWS = 96  # so that prompts are read in chunks
_NO_NOTICES_S = 1e6
KV_CACHE_TOKENS = _NUM_BLOCKS * BLOCK_SIZE


@cache
def reference_runner() -> ModelRunner:
    """Return a target that shares no prefixes and has room for everything."""
    return _runner("target", max_num_batched_tokens=MAX_MODEL_LEN, enable_prefix_caching=False)


@cache
def target_runner() -> ModelRunner:
    """Return the target that sessions crowd on."""
    return _runner("target")


@cache
def draft_runner() -> ModelRunner:
    """Return the draft that goes with it."""
    return _runner("draft")


def _runner(
    name: str, *, max_num_batched_tokens: int = MAX_BATCH_ROWS, enable_prefix_caching: bool = True
) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(pair_folder() / name),
            max_model_len=MAX_MODEL_LEN,
            kv_cache_tokens=KV_CACHE_TOKENS,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=max_num_batched_tokens,
            num_threads=1,
            enable_prefix_caching=enable_prefix_caching,
        )
    )


def emptied(runner: ModelRunner, num_blocks: int = _NUM_BLOCKS) -> ModelRunner:
    """Return the runner with an empty pool of the first `num_blocks` blocks of its storage."""
    runner.pool = BlockPool(min(num_blocks, _NUM_BLOCKS), BLOCK_SIZE)
    return runner


def blocks_needed(request: GenerationRequest) -> int:
    """KV blocks that one request may need at most, its draft included."""
    most = max([request.max_tokens, *map(len, request.choices)])
    return (len(request.prompt_ids) + most + MAX_K + 1) // BLOCK_SIZE + 1


@dataclass(frozen=True, slots=True)
class Engines:
    """A target and its draft, fresh."""

    target: TargetEngine
    draft: DraftEngine
    target_runner: ModelRunner
    draft_runner: ModelRunner

    def held(self, host: GrammarHost | None = None) -> list[str]:
        """Return the leaks of sessions; call it when no thread drives the engines."""
        complaints: list[str] = []
        pairs = (
            ("target", self.target, self.target_runner.pool),
            ("draft", self.draft, self.draft_runner.pool),
        )
        for name, engine, pool in pairs:
            while engine.has_work:
                engine.step()
            load = engine.load()
            if load.num_sessions:
                complaints.append(f"{name}: {load.num_sessions} sessions are left")
            if load.num_free_blocks != load.num_blocks:
                complaints.append(f"{name}: {load.num_free_blocks} of {load.num_blocks} free")
            try:
                pool.check(engine.block_tables())
            except AssertionError as error:
                complaints.append(f"{name}: {error}")
        if host is not None and len(host):
            complaints.append(f"constraint: {len(host)} matchers are left")
        return complaints


def fresh_engines(
    target_masks: MaskSource,
    draft_masks: MaskSource,
    *,
    target_blocks: int = _NUM_BLOCKS,
    draft_blocks: int = _NUM_BLOCKS,
) -> Engines:
    """Engines that know nothing yet. Only one such pair may be in use at a time."""
    target, draft = emptied(target_runner(), target_blocks), emptied(draft_runner(), draft_blocks)
    return Engines(
        TargetEngine(
            target,
            target_masks,
            epoch=1,
            queued_interval_s=_NO_NOTICES_S,
        ),
        DraftEngine(draft, draft_masks, epoch=1, queued_interval_s=_NO_NOTICES_S),
        target,
        draft,
    )


async def left_tasks(before: set[asyncio.Task[object]], limit_s: float = 5.0) -> list[str]:
    """Tasks that began after `before` was taken and do not end within the limit."""
    own = {asyncio.current_task()}
    deadline = asyncio.get_running_loop().time() + limit_s
    while left := asyncio.all_tasks() - before - own:
        if asyncio.get_running_loop().time() >= deadline:
            return [f"task left: {task.get_name()}: {task.get_coro()}" for task in left]
        await asyncio.sleep(0.005)
    return []
