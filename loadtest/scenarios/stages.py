"""The stages of a scenario: engines in one process, in processes of their own, or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from loadtest.bench.http import HttpBench, http_served, lookup_served
from loadtest.bench.link import LinkBench, linked
from loadtest.bench.loop import Ask, EngineLoopBench, Learnt, LoopRun
from loadtest.bench.passes import decode_shapes, measure_passes
from loadtest.scenarios.catalog import Where
from loadtest.scenarios.pairs import Pair
from models.config import DtypeName, EngineConfig
from models.engine.runner import ModelRunner

_MAX_MODEL_LEN = 1024
_MOST_SESSIONS = 16
_PASS_CONTEXT, _PASS_REPEATS = 300, 9
_SESSION_TOKENS = 640  # the longest prompt and output of a scenario


class Stage(Protocol):
    """Serves requests; models are loaded already."""

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `loadtest.bench.loop.EngineLoopBench.serve`."""
        ...

    def costs(self) -> dict[str, float]:
        """Times of a pass of each model at one row, ms, and the draft's share of the target's.

        Empty where they are not to be had: models in other processes, no draft model.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Settings of the models: `threads` of the target, `draft_threads` if the draft is apart."""

    dtype: DtypeName
    threads: int
    draft_threads: int


@contextmanager
def open_stage(where: Where, pair: Pair, machine: Machine) -> Iterator[Stage]:
    """Load a pair, served as `where` says until the block ends.

    Raises:
        ValueError: prompt lookup is to draft in a process of its own.
    """
    opened = {"engine": _engines, "link": _links, "http": _http}[where]
    with opened(pair, machine) as stage:
        yield stage


@contextmanager
def _engines(pair: Pair, machine: Machine) -> Iterator[Stage]:
    torch.set_num_threads(machine.threads)
    target = _runner(pair.target, machine)
    draft, later = (
        None if path is None else _runner(path, machine) for path in (pair.draft, pair.later_draft)
    )
    yield EngineStage(target, draft, later)


class EngineStage:
    """Implements `Stage` in this process."""

    def __init__(
        self, target: ModelRunner, draft: ModelRunner | None, later: ModelRunner | None
    ) -> None:
        self._target = target
        self._draft = draft
        self._bench = EngineLoopBench(target, draft, later)

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `Stage.serve`."""
        return self._bench.serve(asks, batch=batch, k=k, learnt=learnt)

    def costs(self) -> dict[str, float]:
        """See `Stage.costs`."""
        if self._draft is None:
            return {}
        target_ms, draft_ms = (_pass_ms(runner) for runner in (self._target, self._draft))
        return {
            "target_pass_ms": round(target_ms, 3),
            "draft_step_ms": round(draft_ms, 3),
            "draft_cost": round(draft_ms / target_ms, 4),
        }


def _pass_ms(runner: ModelRunner) -> float:
    (time,) = measure_passes(runner, decode_shapes(runner, _PASS_CONTEXT)[:1], _PASS_REPEATS)
    return time.pass_ms


@contextmanager
def _links(pair: Pair, machine: Machine) -> Iterator[Stage]:
    if pair.draft is None:
        raise ValueError("over links a draft model is needed")
    with linked(
        pair.target.parent,
        dtype=machine.dtype,
        target_threads=machine.threads,
        draft_threads=machine.draft_threads,
        max_model_len=_MAX_MODEL_LEN,
    ) as bench:
        yield LinkStage(bench)


class LinkStage:
    """Implements `Stage` over links."""

    def __init__(self, bench: LinkBench) -> None:
        self._bench = bench

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `Stage.serve`."""
        return self._bench.serve(asks, batch=batch, k=k, learnt=learnt)

    def costs(self) -> dict[str, float]:
        """See `Stage.costs`."""
        return {}


@contextmanager
def _http(pair: Pair, machine: Machine) -> Iterator[Stage]:
    if pair.draft is None:
        served = lookup_served(
            pair.target,
            dtype=machine.dtype,
            threads=machine.threads,
            max_num_seqs=_MOST_SESSIONS,
        )
    else:
        threads = (machine.threads, machine.draft_threads)
        served = http_served(pair.target.parent, dtype=machine.dtype, threads=threads)
    with served as bench:
        yield HttpStage(bench)


class HttpStage:
    """Implements `Stage` over a running service, which keeps what it has learnt itself."""

    def __init__(self, bench: HttpBench) -> None:
        self._bench = bench

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """See `Stage.serve`; a planner cannot be handed to a service."""
        return self._bench.serve(asks, batch=batch, k=k)

    def costs(self) -> dict[str, float]:
        """See `Stage.costs`."""
        return {}


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
