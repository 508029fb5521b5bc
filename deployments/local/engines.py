"""Engines and routers in this process over models that are loaded (`pair.LoadedPair`).

The event loop that uses draft and target steps them by turns (`inline.py`), or each has a thread
(`pool.py`). The draft goes first, so that one pass of the target verifies all sessions' drafts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from deployments.config.schema import AppConfig, RouterConfig
from deployments.ingress.service import RouterService, TargetFacts, services_of
from deployments.local.inline import InlineDevice, InlinePool
from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from models.engine.draft import DraftEngine
from models.engine.load import EngineLoad
from models.engine.notices import QUEUED_INTERVAL_S
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import LocalMaskSource, MaskSource, NoMaskSource
from models.heads.config import target_heads
from router.generator import SpeculativeGenerator
from router.services import Services

_EPOCH = 1  # engines here are never replaced

Pool = InlinePool | LocalEnginePool
Link = Callable[[str, Any], Any]  # puts something between the router and a pool, by its name


class LocalEngines:
    """Engines over loaded models. They belong to the event loop that first uses them.

    `LoadedPair.engines` makes them.

    Args:
        config: of the pair; the sections of its models are not read here.
        target, drafts: loaded models with empty KV caches.
        constraint: the grammars; None: none are served.
        has_threads: see `LoadedPair.engines`.
        queued_interval_s: of the target's signs of life to a sender who waits.
    """

    def __init__(
        self,
        config: AppConfig,
        target: ModelRunner,
        drafts: Mapping[str, ModelRunner],
        constraint: LocalConstraintPool | None,
        *,
        has_threads: bool,
        queued_interval_s: float = QUEUED_INTERVAL_S,
    ) -> None:
        self._config = config
        self._device = None if has_threads else InlineDevice()
        self._heads = target_heads(config.target.heads, config.target.early_exit)
        self.constraint_pool = constraint
        self.draft_pools = {  # before the target: the engine that comes first goes first
            name: self._pool(DraftEngine(runner, self._masks(), _EPOCH), runner)
            for name, runner in drafts.items()
        }
        engine = TargetEngine(target, self._masks(), _EPOCH, queued_interval_s=queued_interval_s)
        self.target_pool = self._pool(engine, target)

    def router(self, config: RouterConfig | None = None, **services: Any) -> SpeculativeGenerator:
        """Return a router over these engines, which knows nothing yet; see `services`."""
        config = config or self._config.router
        return SpeculativeGenerator(
            self.services(config, **services), max_model_len=config.max_model_len
        )

    def services(
        self, config: RouterConfig | None = None, *, link: Link | None = None, **fields: Any
    ) -> Services:
        """Return the services of a router.

        Args:
            config: of the router; None: that of the pair.
            link: returns the pool that the router sees, given a pool's name and the pool.
            fields: of `Services` in place of these: fewer draft pools, a planner.
        """
        between = link or (lambda name, pool: pool)
        drafts = self.draft_pools.items()
        pools = {
            "target_pool": between("target", self.target_pool),
            "draft_pools": {name: between("draft", pool) for name, pool in drafts},
            "constraint_pool": self.constraint_pool and between("constraint", self.constraint_pool),
        }
        config = config or self._config.router
        return services_of(config, **{**pools, "heads": self._heads, **fields})

    def service(self, config: RouterConfig | None = None) -> RouterService:
        """Return a service over these engines; `service.http` has what the HTTP routes need.

        Raises:
            ValueError: see `RouterService`.
        """
        return RouterService(
            config or self._config.router,
            target=self.target_pool,
            drafts=self.draft_pools,
            constraint=self.constraint_pool,
            facts=TargetFacts(heads=self._heads, adapters=tuple(self._config.target.lora_modules)),
        )

    def loads(self) -> dict[str, EngineLoad]:
        """Return the load of the engines, by the name of their section."""
        return {name: pool.engine.load() for name, pool in self._pools().items()}

    def threads(self) -> dict[str, LocalEnginePool]:
        """Return the pools whose engines have a thread each, by name."""
        pools = self._pools().items()
        return {name: pool for name, pool in pools if isinstance(pool, LocalEnginePool)}

    async def close(self) -> None:
        """End the engines; sessions that run are lost. Idempotent."""
        if self._device is not None:
            await self._device.close()
        for pool in self.threads().values():
            await pool.close()
        if self.constraint_pool is not None:
            # At the interpreter's end no thread begins any more.
            with contextlib.suppress(RuntimeError):
                await self.constraint_pool.close()

    def _pools(self) -> dict[str, Pool]:
        return {**self.draft_pools, "target": self.target_pool}

    def _pool(self, engine: DraftEngine | TargetEngine, runner: ModelRunner) -> Pool:
        if self._device is not None:
            return self._device.pool(engine, epoch=_EPOCH, max_model_len=runner.max_model_len)
        return LocalEnginePool(
            engine,
            epoch=_EPOCH,
            max_model_len=runner.max_model_len,
            kv_cache_tokens=runner.pool.num_blocks * runner.pool.block_size,
        )

    def _masks(self) -> MaskSource:
        pool = self.constraint_pool
        return NoMaskSource() if pool is None else LocalMaskSource(pool.host)
