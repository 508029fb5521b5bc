"""The expensive part of a service in one process: models, tokenizer and grammars, loaded once.

Engines over a loaded pair are cheap (`engines.LocalEngines`), and so are routers over engines. So
`deployments.llm`, measurements and tests load a pair once and begin with empty engines each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.config.fault import Fault
from deployments.config.model_files import check_models, fitted, resolved, with_shared_vocabulary
from deployments.config.schema import AppConfig
from deployments.constraint.child import compiler_of
from deployments.constraint.reward_workers import RewardWorkers
from deployments.constraint.workers import children_config
from deployments.local.engines import LocalEngines
from deployments.local.pool import LocalConstraintPool
from models.checkpoint.small_files import read_vocab_size
from models.engine.runner import ModelRunner
from models.fetch.hub import bring
from models.fetch.sources import say
from models.grammar.host import GrammarHost
from models.grammar.limits import HostLimits
from models.kv.block_pool import BlockPool
from models.text.tokenizer import Tokenizer


def local_config(tree: Mapping[str, Any]) -> AppConfig:
    """Return a config that is ready to load; models that are known by a name only are fetched.

    Args:
        tree: sections and their fields, as in the `args` of a config file.

    Raises:
        ValueError: a field is unknown or wrong, or a model is missing or cannot be served.
    """
    config = resolved(fitted(AppConfig.model_validate(tree)))
    check_models(config)
    for model in config.models.values():
        bring(Path(model.model_path), say)
    return with_shared_vocabulary(config)


class LoadedPair:
    """A target, its draft models and their grammars. Made in any thread.

    Args:
        config: see `local_config`.

    Raises:
        ValueError: a checkpoint cannot be served; or it asks for several ranks, which are processes
            of their own.
    """

    def __init__(self, config: AppConfig) -> None:
        for section, model in config.models.items():
            if model.tensor_parallel_size > 1:
                key = f"{section}.tensor_parallel_size"
                raise Fault(key, f"must be 1 in one process (got {model.tensor_parallel_size})")
        self.config = config
        self.tokenizer = Tokenizer.load(config.router.tokenizer_path)
        self.target = ModelRunner(config.target)
        self.drafts = {pool: ModelRunner(model) for pool, model in config.draft_models.items()}
        self._children = children_config(
            config.constraint,
            tokenizer_path=config.target.model_path,
            vocab_size=read_vocab_size(Path(config.target.model_path)),
            eos_ids=self.tokenizer.eos_ids,
        )
        self.grammars = GrammarHost(
            compiler_of(self._children),
            HostLimits(
                max_cached_grammars=config.constraint.cache_size,
                max_sessions=max(config.constraint.max_sessions, config.target.max_num_seqs),
            ),
        )

    def engines(self, *, has_threads: bool = False) -> LocalEngines:
        """Return engines with empty KV caches; those that were returned before must have ended.

        Args:
            has_threads: each engine has a thread of its own, as in a deployment. If not, the event
                loop that uses them steps them by turns.
        """
        for runner in (self.target, *self.drafts.values()):
            runner.pool = BlockPool(runner.pool.num_blocks, runner.pool.block_size)
        return LocalEngines(
            self.config,
            self.target,
            self.drafts,
            LocalConstraintPool(self.grammars, rewards=RewardWorkers(self._children)),
            has_threads=has_threads,
        )
