"""Tokens per second of the real engines under the router's real loop, in one process.

Draft and target are stepped by turns on one device (`deployments.local.inline`). There is no
thread, socket or HTTP between loop and engines. It measures the speed that a pair can give, before
serving costs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployments.local.inline import InlineDevice, InlinePool
from models.config import EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.planning.acceptance import AcceptancePool
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.ports import EngineLease, EnginePool, TaskClass
from router.services import Services
from router.stats import SpeculationStats
from router.types import Finished, GenerationRequest, SpeculationSettings

Prompts = Sequence[Sequence[int]]

SPLIT = ("draft", "verify", "queue", "link", "loop")
_EPOCH = 1
_HIGHEST_K = 8  # the highest of adaptive k
_LOOKUP_MAX = 4  # longest n-gram of prompt lookup
LIMITS = SessionLimits(draft_ms=10_000)  # on a slow machine a draft is waited for


@dataclass(frozen=True)
class LoopRun:
    """One run of all prompts; times are means per round and session, in ms."""

    tokens_per_s: float  # see `rate_at_full_places`
    tokens_per_round: float  # in rounds with a draft; 1.0 without
    acceptance: float  # accepted / drafted tokens
    mean_k: float
    round_ms: dict[str, float] = field(default_factory=dict)
    drafted_share: float = 0.0  # rounds with a draft over all rounds, plain steps included
    rounds_by_k: Mapping[int, int] = field(default_factory=dict)  # k = 0: plain steps


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a run: exactly `num_tokens` tokens, sampled with `seed` above temperature 0.

    `pause_s`: how long it comes after a place for it is free.
    """

    prompt: Sequence[int]
    num_tokens: int
    temperature: float = 0.0
    seed: int = 0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """One request of a run: when it began and ended, in seconds, and its tokens."""

    began_s: float
    ended_s: float
    num_tokens: int


def rate_at_full_places(spans: Sequence[Span], batch: int) -> float:
    """Tokens/s while every one of `batch` places had a request.

    A run only waits for its slowest request once the last one has begun. That is a larger part of a
    run with fewer requests. A busy server never has such a wait. A request's tokens are taken to
    come evenly.
    """
    began_s = min(span.began_s for span in spans)
    until_s = sorted(span.ended_s for span in spans)[max(0, len(spans) - batch)]
    num_tokens = sum(
        span.num_tokens * min(1.0, (until_s - span.began_s) / (span.ended_s - span.began_s))
        for span in spans
    )
    return num_tokens / (until_s - began_s)


class RunClock:
    """Time that passes only within `with` blocks, in seconds.

    Where lines are run by turns each planner has one. Exploration is a share of time: of its own
    line's time, without the turns of the other lines.
    """

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._began_s: float | None = None

    def __call__(self) -> float:
        """Return the time that has passed."""
        return self._passed_s + (
            0.0 if self._began_s is None else time.perf_counter() - self._began_s
        )

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._passed_s, self._began_s = self(), None


class Learnt:
    """The planner's knowledge that a router keeps between requests.

    Runs that share it find a warm planner.

    Args:
        pinned: k of every session in place of the planner's, to measure what planning costs.
    """

    def __init__(self, pinned: int | None = None) -> None:
        self.clock = RunClock()
        self.planner = RouterPlanner(PassCosts(), self.clock, pinned)
        self.acceptance: dict[tuple[str, TaskClass], AcceptancePool] = {}


class NoText:
    """Implements `router.types.Detokenizer`: tokens are counted, not read."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return no text."""
        return ""

    def flush(self) -> str:
        """Return no text."""
        return ""


class EngineLoopBench:
    """A pair of engines and the loop over them. The runners may be used elsewhere between runs.

    Args:
        target: of the pair.
        draft: of the pair; None: only prompt lookup drafts.
        later_draft: drafts for the second half of a run's requests; None: `draft` does.
    """

    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner | None,
        later_draft: ModelRunner | None = None,
    ) -> None:
        self._target = target
        self._draft = draft
        self._later_draft = later_draft
        self._num_runs = 0
        self._learnt = Learnt()

    def run(self, prompts: Prompts, *, batch: int, k: int | None, num_tokens: int) -> LoopRun:
        """Serve all prompts greedily, `batch` at a time, `num_tokens` each; k None is adaptive.

        The planner's knowledge is kept from one adaptive run to the next, as a server keeps it.
        """
        asks = [Ask(prompt=prompt, num_tokens=num_tokens) for prompt in prompts]
        return self.serve(asks, batch=batch, k=k, learnt=self._learnt if k is None else Learnt())

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None, learnt: Learnt) -> LoopRun:
        """Serve all asks, `batch` at a time; k None: `learnt` has a planner that chooses."""
        self._num_runs += 1
        with learnt.clock:
            return asyncio.run(self._serve(asks, batch, k, learnt))

    async def _serve(
        self, asks: Sequence[Ask], batch: int, k: int | None, learnt: Learnt
    ) -> LoopRun:
        device = InlineDevice()
        drafts = [runner for runner in (self._draft, self._later_draft) if runner is not None]
        pools = [  # before the target's: the first pool goes first
            _pool(device, DraftEngine(runner, NoMaskSource(), _EPOCH), runner) for runner in drafts
        ]
        draft_pool = TurningPool(pools, len(asks)) if pools else None
        target = TargetEngine(self._target, NoMaskSource(), _EPOCH)
        services = make_services(_pool(device, target, self._target), draft_pool, k, learnt)
        generator = SpeculativeGenerator(services, max_model_len=self._target.max_model_len)
        try:
            return await serve_asks(generator, asks, batch, f"run-{self._num_runs}")
        finally:
            await device.close()


class TurningPool:
    """Implements `router.ports.EnginePool` over several, one after another.

    Args:
        pools: each gives as many leases as any other, the first one first.
        num_leases: in all; after them the last pool goes on.
    """

    def __init__(self, pools: Sequence[EnginePool], num_leases: int) -> None:
        self._pools = pools
        self._num_leases = num_leases
        self._num_given = 0

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`."""
        place = len(self._pools) * self._num_given // self._num_leases
        self._num_given += 1
        pool = self._pools[min(place, len(self._pools) - 1)]
        return await pool.lease(session_id, timeout_s=timeout_s)


def make_services(
    target: EnginePool, draft: EnginePool | None, k: int | None, learnt: Learnt | None = None
) -> Services:
    """Return the router's services with one drafter: the draft model, or prompt lookup without one.

    If `k` is None, it is chosen live with the knowledge in `learnt`.
    """
    learnt = learnt or Learnt()
    lookup = 0 if draft is not None else _LOOKUP_MAX
    return Services(
        target_pool=target,
        draft_pools={} if k == 0 or draft is None else {POOL: draft},
        constraint_pool=None,
        speculation=SpeculationLimits(
            num_speculative_tokens="adaptive" if k is None else k,
            max_num_speculative_tokens=max(_HIGHEST_K, k or 0),
            prompt_lookup_max=lookup,
            suffix_decoding_max_tree_depth=0,
        ),
        limits=LIMITS,
        planner=learnt.planner,
        acceptance=learnt.acceptance,
    )


async def serve_asks(
    generator: SpeculativeGenerator, asks: Sequence[Ask], batch: int, name: str
) -> LoopRun:
    """Serve all asks, `batch` at a time; `name` is unique among the runs of a generator."""
    places = asyncio.Semaphore(batch)

    async def one(index: int) -> tuple[Finished, Span]:
        async with places:
            began_s = time.perf_counter()
            if asks[index].pause_s > 0.0:
                await asyncio.sleep(asks[index].pause_s)
            finish = await _serve(generator, f"{name}-{index}", asks[index])
            return finish, Span(began_s, time.perf_counter(), finish.num_completion_tokens)

    served = await asyncio.gather(*(one(index) for index in range(len(asks))))
    rate = rate_at_full_places([span for _, span in served], batch)
    return summarise(rate, [finish.speculation for finish, _ in served])


def pair_runners(
    pair: Path, *, max_model_len: int, num_threads: int
) -> tuple[ModelRunner, ModelRunner]:
    """Target and draft of a pair's folder, see `bench_runner`."""
    target, draft = (
        bench_runner(pair / part, max_model_len=max_model_len, num_threads=num_threads)
        for part in ("target", "draft")
    )
    return target, draft


def bench_runner(folder: Path, *, max_model_len: int, num_threads: int) -> ModelRunner:
    """Load one model, with room for four texts and no prefix cache."""
    return ModelRunner(
        EngineConfig(
            model_path=str(folder),
            dtype="bfloat16",
            max_model_len=max_model_len,
            kv_cache_tokens=4 * max_model_len,
            enable_prefix_caching=False,  # runs repeat their prompts
            num_threads=num_threads,
        )
    )


def loop_lines(
    ks: Sequence[int | None], run: Callable[[int | None], LoopRun]
) -> dict[str, Callable[[], LoopRun]]:
    """Lines for `interleave`, one for each k, by the name the tables use."""

    def line(k: int | None) -> Callable[[], LoopRun]:
        return lambda: run(k)

    return {name_of(k): line(k) for k in ks}


def name_of(k: int | None) -> str:
    """Return the name of a way to choose k."""
    return "adaptive" if k is None else f"k={k}"


def _pool(
    device: InlineDevice, engine: DraftEngine | TargetEngine, runner: ModelRunner
) -> InlinePool:
    return device.pool(engine, epoch=_EPOCH, max_model_len=runner.max_model_len)


def make_request(
    name: str,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> GenerationRequest:
    """Exactly `num_tokens` tokens; `name` is unique among the requests of a generator."""
    return GenerationRequest(
        request_id=name,
        prompt_ids=tuple(prompt),
        sampling=Sampling(temperature=temperature, seed=seed),
        eos_ids=(),
        max_tokens=num_tokens,
        ignore_eos=True,
        speculation=SpeculationSettings(),
    )


async def _serve(generator: SpeculativeGenerator, name: str, ask: Ask) -> Finished:
    request = make_request(name, ask.prompt, ask.num_tokens, ask.temperature, ask.seed)
    finished: Finished | None = None
    async for event in generator.generate(request, NoText()):  # to its end: it frees the session
        if isinstance(event, Finished):
            finished = event
    if finished is None:
        raise RuntimeError("the stream ended without a finish")
    return finished


def summarise(tokens_per_s: float, stats: Sequence[SpeculationStats]) -> LoopRun:
    """Add up the statistics of several sessions."""
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
        drafted_share=num_steps / max(num_rounds, 1),
        rounds_by_k=count_rounds((stat.num_rounds, stat.per_step_drafted) for stat in stats),
    )


def count_rounds(sessions: Iterable[tuple[int, Sequence[int]]]) -> dict[int, int]:
    """Count rounds by the number of drafted tokens, from (number of rounds, lengths) of sessions.

    A plain step counts as a round of k = 0.
    """
    counts: Counter[int] = Counter()
    for num_rounds, lengths in sessions:
        counts.update(lengths)
        counts[0] += num_rounds - len(lengths)
    return dict(sorted(counts.items()))
