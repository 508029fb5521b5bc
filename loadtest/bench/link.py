"""The same loop with draft and target in processes of their own, over real links. No HTTP.

Measures the cost of serving over the engines: leases, frames and the waking of other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from deployments.config.schema import ModelConfig
from deployments.engine.rank import EngineKind
from loadtest.bench.loop import Ask, Learnt, LoopRun, Prompts, make_services, serve_asks
from loadtest.frame.ranks import ProcessPool
from router.generator import SpeculativeGenerator

Result = TypeVar("Result")

_CACHED_SESSIONS = 16


class LinkBench:
    """Draft and target processes, and the router's loop in this one. Made by `linked`."""

    def __init__(
        self, runner: asyncio.Runner, target: ProcessPool, draft: ProcessPool, max_model_len: int
    ) -> None:
        self._runner = runner
        self._target = target
        self._draft = draft
        self.max_model_len = max_model_len
        self._num_runs = 0
        self._learnt = Learnt()

    def run(self, prompts: Prompts, *, batch: int, k: int | None, num_tokens: int) -> LoopRun:
        """See `EngineLoopBench.run`."""
        asks = [Ask(prompt=prompt, num_tokens=num_tokens) for prompt in prompts]
        return self.serve(asks, batch=batch, k=k, learnt=self._learnt if k is None else Learnt())

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `EngineLoopBench.serve`."""
        self._num_runs += 1
        name = f"link-{self._num_runs}"
        with learnt.clock:
            return self.use(k, lambda generator: serve_asks(generator, asks, batch, name), learnt)

    def use(
        self,
        k: int | None,
        work: Callable[[SpeculativeGenerator], Coroutine[Any, Any, Result]],
        learnt: Learnt | None = None,
    ) -> Result:
        """Return the result of `work` with a generator of its own; k None is adaptive."""
        services = make_services(self._target, self._draft, k, learnt)
        return self._runner.run(
            work(SpeculativeGenerator(services, max_model_len=self.max_model_len))
        )


@contextmanager
def linked(
    pair: Path, *, dtype: str, target_threads: int, draft_threads: int, max_model_len: int
) -> Iterator[LinkBench]:
    """Load both models in processes of their own; they end with the block."""

    def model(kind: EngineKind, num_threads: int) -> ModelConfig:
        return ModelConfig(
            model_path=str((pair / kind).resolve()),
            dtype=dtype,  # type: ignore[arg-type]  # checked there
            max_model_len=max_model_len,
            kv_cache_tokens=_CACHED_SESSIONS * max_model_len,
            enable_prefix_caching=False,  # as in the engine part
            num_threads=num_threads,
        )

    models = model("target", target_threads), model("draft", draft_threads)
    with linked_models(*models, max_model_len) as bench:
        yield bench


@contextmanager
def linked_models(
    target: ModelConfig, draft: ModelConfig, max_model_len: int
) -> Iterator[LinkBench]:
    """Yield a bench for models and devices of any config."""
    pools: list[ProcessPool] = []
    with asyncio.Runner() as runner:  # sockets stay with their event loop
        try:
            pools.append(ProcessPool("target", target))
            pools.append(ProcessPool("draft", draft))
            for pool in pools:
                pool.wait_ready()
            yield LinkBench(runner, pools[0], pools[1], max_model_len)
        finally:
            for pool in pools:
                runner.run(pool.close())
