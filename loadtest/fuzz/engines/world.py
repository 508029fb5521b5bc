"""The service's real parts in this process: runners loaded once, engines and pools fresh per case.

A case that begins with empty engines can be repeated alone. Nothing here is a stand-in: engines,
grammar host, router and pools are those that serve. The only difference from a deployment is that
no process and no socket lies between them.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from deployments.local.engines import LocalEngines
from deployments.local.inline import InlinePool
from deployments.local.pair import LoadedPair, local_config
from deployments.local.pool import LocalConstraintPool
from loadtest.fuzz.engines.pair import MAX_MODEL_LEN, pair_folder
from models.engine.runner import ModelRunner
from models.grammar.host import GrammarHost
from models.kv.block_pool import BlockPool
from router.drafters.draft_model import POOL
from router.types import GenerationRequest

BLOCK_SIZE = 16
MAX_K = 8
_NUM_BLOCKS = 256
_MAX_BATCH_ROWS = 96  # so that prompts are read in chunks
_NO_NOTICES_S = 1e6
_TASKS_LIMIT_S = 5.0


def loaded_pair() -> LoadedPair:
    """Return the target that sessions crowd on, and the draft that goes with it, both emptied.

    Engines that had them before must have ended.
    """
    pair = _pair()
    for runner in (pair.target, *pair.drafts.values()):
        emptied(runner)
    return pair


@cache
def _pair() -> LoadedPair:
    model = {
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_tokens": _NUM_BLOCKS * BLOCK_SIZE,
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": _MAX_BATCH_ROWS,
        "num_threads": 1,
    }
    folder = pair_folder()
    parts = {part: model | {"model_path": str(folder / part)} for part in ("target", "draft")}
    return LoadedPair(local_config(parts))


@cache
def reference_runner() -> ModelRunner:
    """Return a target that shares no prefixes and has room for everything."""
    alone = {"max_num_batched_tokens": MAX_MODEL_LEN, "enable_prefix_caching": False}
    return ModelRunner(_pair().config.target.model_copy(update=alone))


def emptied(runner: ModelRunner, num_blocks: int = _NUM_BLOCKS) -> ModelRunner:
    """Return the runner with an empty pool of the first `num_blocks` blocks of its storage."""
    runner.pool = BlockPool(min(num_blocks, _NUM_BLOCKS), BLOCK_SIZE)
    return runner


def blocks_needed(request: GenerationRequest) -> int:
    """KV blocks that one request may need at most, its draft included."""
    most = max([request.max_tokens, *map(len, request.choices)])
    return (len(request.prompt_ids) + most + MAX_K + 1) // BLOCK_SIZE + 1


def reference_engines(host: GrammarHost) -> LocalEngines:
    """Return the target of `reference_runner` alone, which knows nothing yet."""
    target, constraint = emptied(reference_runner()), LocalConstraintPool(host)
    return LocalEngines(_pair().config, target, {}, constraint, has_threads=False)


def crowded_engines(host: GrammarHost, *, target_blocks: int, draft_blocks: int) -> LocalEngines:
    """Return fresh engines with so many KV blocks; those before must have ended."""
    pair = _pair()
    return LocalEngines(
        pair.config,
        emptied(pair.target, target_blocks),
        {POOL: emptied(pair.drafts[POOL], draft_blocks)},
        LocalConstraintPool(host),
        has_threads=False,
        queued_interval_s=_NO_NOTICES_S,
    )


def _pools(engines: LocalEngines) -> list[tuple[str, InlinePool]]:
    found = {"target": engines.target_pool, **engines.draft_pools}
    return [(name, pool) for name, pool in found.items() if isinstance(pool, InlinePool)]


def leases_left(engines: LocalEngines) -> list[str]:
    """Return the leases that were not given back."""
    counts = {name: len(pool.session_ids) for name, pool in _pools(engines)}
    return [f"{name}: {count} leases are left" for name, count in counts.items() if count]


def held(engines: LocalEngines, host: GrammarHost) -> list[str]:
    """Return the leaks of sessions; call it when nothing drives the engines any more."""
    complaints: list[str] = []
    for name, pool in _pools(engines):
        engine: Any = pool.engine  # it has more than its device needs
        while engine.has_work:
            engine.step()
        load = engine.load()
        if load.num_sessions:
            complaints.append(f"{name}: {load.num_sessions} sessions are left")
        if load.num_free_blocks != load.num_blocks:
            complaints.append(f"{name}: {load.num_free_blocks} of {load.num_blocks} free")
        try:
            engine.runner.pool.check(engine.block_tables())
        except AssertionError as error:
            complaints.append(f"{name}: {error}")
    if len(host):
        complaints.append(f"constraint: {len(host)} matchers are left")
    return complaints


async def left_tasks(before: set[asyncio.Task[object]]) -> list[str]:
    """Tasks that began after `before` was taken and do not end within a limit."""
    own = {asyncio.current_task()}
    deadline = asyncio.get_running_loop().time() + _TASKS_LIMIT_S
    while left := asyncio.all_tasks() - before - own:
        if asyncio.get_running_loop().time() >= deadline:
            return [f"task left: {task.get_name()}: {task.get_coro()}" for task in left]
        await asyncio.sleep(0.005)
    return []
