"""Where a scenario runs: engines in one process, in processes of their own, or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from loadtest.bench.loop import Ask, EngineLoopBench, Learnt, LoopRun
from loadtest.scenarios.catalog import Where
from loadtest.scenarios.pairs import Pair
from models.config import DtypeName, EngineConfig
from models.engine.runner import ModelRunner

_MAX_MODEL_LEN = 1024
_MOST_SESSIONS = 16
_SESSION_TOKENS = 640  # the longest prompt and output of a scenario


class Stage(Protocol):
    """Serves requests; models are loaded already."""

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `loadtest.bench.loop.EngineLoopBench.serve`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How models are run: `threads` of the target, `draft_threads` where the draft is apart."""

    dtype: DtypeName
    threads: int
    draft_threads: int


@contextmanager
def open_stage(where: Where, pair: Pair, machine: Machine) -> Iterator[Stage]:
    """Load a pair, served as `where` says until the block ends."""
    assert where == "engine"
    torch.set_num_threads(machine.threads)
    target, draft = (
        None if path is None else _runner(path, machine) for path in (pair.target, pair.draft)
    )
    assert target is not None, "every pair has a target"
    yield EngineLoopBench(target, draft)


def _runner(path: Path, machine: Machine) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(path),
            dtype=machine.dtype,
            max_model_len=_MAX_MODEL_LEN,
            kv_cache_tokens=_MOST_SESSIONS * _SESSION_TOKENS,
            enable_prefix_caching=False,  # turns repeat their prompts
            num_threads=machine.threads,
        )
    )
