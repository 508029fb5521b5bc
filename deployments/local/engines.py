"""Builds engines, grammars and router in this process from a config, for `deployments.llm`.

Draft and target are stepped by turns in the event loop that uses them (`inline.py`). The draft goes
first, so that one pass of the target verifies the drafts of all sessions.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from deployments.config.fault import Fault
from deployments.config.schema import AppConfig, ModelConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.constraint.workers import children_config
from deployments.local.inline import InlineDevice, InlinePool
from deployments.local.pool import LocalConstraintPool
from models.checkpoint.small_files import read_vocab_size
from models.engine.draft import DraftEngine
from models.engine.load import EngineLoad
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.limits import HostLimits, SchemaLimits
from models.grammar.masks import LocalMaskSource
from models.heads.config import target_heads
from models.text.tokenizer import Tokenizer
from router.generator import SpeculativeGenerator
from router.planning.rollout_places import RolloutPlaces
from router.services import Services

_EPOCH = 1  # engines here are never replaced


class LocalEngines:
    """The models of a resolved config, loaded, and the generator over them.

    Made in any thread; `generator` and `close` belong to one event loop.

    Raises:
        ValueError: a checkpoint cannot be served; or it asks for several ranks, which are processes
            of their own.
    """

    def __init__(self, config: AppConfig) -> None:
        for section, model in config.models.items():
            if model.tensor_parallel_size > 1:
                key = f"{section}.tensor_parallel_size"
                raise Fault(key, f"must be 1 in one process (got {model.tensor_parallel_size})")
        self.tokenizer = Tokenizer.load(config.router.tokenizer_path)
        target = ModelRunner(config.target)
        drafts = {pool: ModelRunner(model) for pool, model in config.draft_models.items()}
        vocabulary = VocabularyInfo(
            tokenizer_json=_tokenizer_json(config.target),
            vocab_size=read_vocab_size(Path(config.target.model_path)),
            eos_ids=self.tokenizer.eos_ids,
        )
        service = config.constraint
        self._constraint = LocalConstraintPool(
            GrammarHost(
                GrammarCompiler(
                    vocabulary, SchemaLimits(max_schema_bytes=service.max_schema_bytes)
                ),
                HostLimits(max_cached_grammars=service.cache_size),
            ),
            rewards=RewardWorkers(
                children_config(
                    service,
                    tokenizer_path=config.router.tokenizer_path,
                    vocab_size=vocabulary.vocab_size,
                    eos_ids=vocabulary.eos_ids,
                )
            ),
        )
        self._device = InlineDevice()
        self._pools: dict[str, InlinePool] = {}
        for pool, draft in drafts.items():  # before the target: the engine that comes first goes
            self._add(pool, DraftEngine(draft, self._masks(), _EPOCH), draft)  # first
        self._add("target", TargetEngine(target, self._masks(), _EPOCH), target)
        services = Services(
            target_pool=self._pools["target"],
            draft_pools={pool: self._pools[pool] for pool in drafts},
            constraint_pool=self._constraint,
            speculation=config.router.speculation,
            limits=config.router.timeouts,
            heads=target_heads(config.target.heads, config.target.early_exit),
            rollouts=RolloutPlaces(config.router.max_rollouts, config.router.max_rollout_slowdown),
        )
        self.generator = SpeculativeGenerator(services, max_model_len=config.router.max_model_len)

    def loads(self) -> dict[str, EngineLoad]:
        """Return the load of the engines, by the name of their section."""
        return {name: pool.engine.load() for name, pool in self._pools.items()}

    async def close(self) -> None:
        """End the engines; sessions that run are lost. Idempotent."""
        await self._device.close()
        with contextlib.suppress(
            RuntimeError
        ):  # at the interpreter's end no thread begins any more
            await self._constraint.close()

    def _add(self, name: str, engine: DraftEngine | TargetEngine, runner: ModelRunner) -> None:
        self._pools[name] = self._device.pool(
            engine,
            epoch=_EPOCH,
            max_model_len=runner.max_model_len,
        )

    def _masks(self) -> LocalMaskSource:
        return LocalMaskSource(self._constraint.host)


def _tokenizer_json(target: ModelConfig) -> str:
    return (Path(target.model_path) / "tokenizer.json").read_text(encoding="utf-8")
