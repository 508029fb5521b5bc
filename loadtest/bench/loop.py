"""Tokens per second of the real engines under the router's real loop, in one process.

Draft and target are stepped by turns on one device (`deployments.local.inline`); between loop and
engines there is no thread, no socket and no HTTP. What a pair can give, before serving costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deployments.local.inline import InlineDevice, InlinePool
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.ports import EnginePool
from router.session import Services
from router.types import Finished, GenerationRequest, SpeculationSettings, SpeculationStats

Prompts = Sequence[Sequence[int]]

SPLIT = ("draft", "verify", "queue", "link", "loop")
_EPOCH = 1
_HIGHEST_K = 8  # of adaptive k
LIMITS = SessionLimits(draft_ms=10_000)  # on a slow machine a draft is waited for


@dataclass(frozen=True)
class LoopRun:
    """One run of all prompts; times are means per round and session, in ms."""

    tokens_per_s: float
    tokens_per_round: float  # of rounds with a draft; 1.0 without
    acceptance: float  # accepted / drafted tokens
    mean_k: float
    round_ms: dict[str, float] = field(default_factory=dict)


class NoText:
    """Implements `router.types.Detokenizer`: tokens are counted, not read."""

    def push(self, token_ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def flush(self) -> str:
        """No text."""
        return ""


class EngineLoopBench:
    """A pair of engines and the loop over them. The runners may be used elsewhere between runs."""

    def __init__(self, target: ModelRunner, draft: ModelRunner) -> None:
        self._target = target
        self._draft = draft
        self._num_runs = 0

    def run(self, prompts: Prompts, *, batch: int, k: int | None, num_tokens: int) -> LoopRun:
        """Serve all prompts greedily, `batch` at a time, `num_tokens` each; k None is adaptive."""
        self._num_runs += 1
        return asyncio.run(self._run(prompts, batch, k, num_tokens))

    async def _run(self, prompts: Prompts, batch: int, k: int | None, num_tokens: int) -> LoopRun:
        device = InlineDevice()
        draft = DraftEngine(self._draft, NoMaskSource(), _EPOCH)
        target = TargetEngine(self._target, NoMaskSource(), _EPOCH)
        draft_pool, target_pool = (
            _pool(device, engine, runner)
            for engine, runner in ((draft, self._draft), (target, self._target))
        )
        services = make_services(target_pool, None if k == 0 else draft_pool, k)
        generator = SpeculativeGenerator(services, max_model_len=self._target.max_model_len)
        try:
            return await serve_all(generator, prompts, batch, num_tokens, f"run-{self._num_runs}")
        finally:
            await device.close()


def make_services(target: EnginePool, draft: EnginePool | None, k: int | None) -> Services:
    """What the router works with when only the draft model drafts."""
    return Services(
        target_pool=target,
        draft_pool=draft,
        constraint_pool=None,
        speculation=SpeculationLimits(
            num_speculative_tokens="adaptive" if k is None else k,
            max_num_speculative_tokens=max(_HIGHEST_K, k or 0),
            prompt_lookup_max=0,
            suffix_decoding_max_tree_depth=0,
        ),
        limits=LIMITS,
    )


async def serve_all(
    generator: SpeculativeGenerator, prompts: Prompts, batch: int, num_tokens: int, name: str
) -> LoopRun:
    """Serve all prompts, `batch` at a time; `name` is unique among the runs of a generator."""
    places = asyncio.Semaphore(batch)

    async def one(index: int) -> Finished:
        async with places:
            return await _serve(generator, f"{name}-{index}", prompts[index], num_tokens)

    started_at = time.perf_counter()
    finished = await asyncio.gather(*(one(index) for index in range(len(prompts))))
    elapsed_s = time.perf_counter() - started_at
    num_generated = sum(finish.num_completion_tokens for finish in finished)
    return summarise(num_generated / elapsed_s, [finish.speculation for finish in finished])


def loop_lines(
    ks: Sequence[int | None], run: Callable[[int | None], LoopRun]
) -> dict[str, Callable[[], LoopRun]]:
    """Lines for `interleave`, one for each k, by the name the tables use."""

    def line(k: int | None) -> Callable[[], LoopRun]:
        return lambda: run(k)

    return {name_of(k): line(k) for k in ks}


def name_of(k: int | None) -> str:
    """The name of a way to choose k."""
    return "adaptive" if k is None else f"k={k}"


def _pool(
    device: InlineDevice, engine: DraftEngine | TargetEngine, runner: ModelRunner
) -> InlinePool:
    return device.pool(engine, epoch=_EPOCH, max_model_len=runner.max_model_len)


def make_request(name: str, prompt: Sequence[int], num_tokens: int) -> GenerationRequest:
    """Exactly `num_tokens` greedy tokens; `name` is unique among the requests of a generator."""
    return GenerationRequest(
        request_id=name,
        prompt_ids=tuple(prompt),
        sampling=Sampling(temperature=0.0),
        eos_ids=(),
        max_tokens=num_tokens,
        ignore_eos=True,
        speculation=SpeculationSettings(),
    )


async def _serve(
    generator: SpeculativeGenerator, name: str, prompt: Sequence[int], num_tokens: int
) -> Finished:
    request = make_request(name, prompt, num_tokens)
    finished: Finished | None = None
    async for event in generator.generate(request, NoText()):  # to its end: it frees the session
        if isinstance(event, Finished):
            finished = event
    if finished is None:
        raise RuntimeError("the stream ended without a finish")
    return finished


def summarise(tokens_per_s: float, stats: Sequence[SpeculationStats]) -> LoopRun:
    """What some sessions did together."""
    num_rounds = sum(stat.num_rounds for stat in stats)
    num_steps = sum(stat.num_spec_steps for stat in stats)
    num_drafted = sum(stat.num_draft_tokens for stat in stats)
    num_accepted = sum(stat.num_accepted_draft_tokens for stat in stats)
    return LoopRun(
        tokens_per_s=tokens_per_s,
        tokens_per_round=1.0 + num_accepted / max(num_steps, 1),
        acceptance=num_accepted / max(num_drafted, 1),
        mean_k=num_drafted / max(num_steps, 1),
        round_ms={
            part: sum(getattr(stat.time, f"{part}_ms") for stat in stats) / max(num_rounds, 1)
            for part in SPLIT
        },
    )
