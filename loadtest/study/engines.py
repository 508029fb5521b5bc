"""A target and its drafts in one process, under the router's real loop, for any way to draft.

There is no thread, no socket and no HTTP between loop and engines (`deployments.local.inline`). So
it shows the limit of a pair, before the cost of serving. Grammars are compiled and checked in a
thread. The planner's knowledge of a way is kept from run to run, as in a long-running service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from deployments.local.inline import InlineDevice, InlinePool
from deployments.local.pool import LocalConstraintPool
from loadtest.bench.loop import LIMITS, LoopRun, NoText, make_services, name_of, summarise
from models.config import DtypeName, EngineConfig, QuantizationName
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.masks import LocalMaskSource
from models.protocol.messages import Grammar, Sampling
from models.text.tokenizer import Tokenizer
from router.generator import SpeculativeGenerator
from router.limits import SpeculationLimits
from router.stats import SpeculationStats
from router.types import Delta, Finished, GenerationRequest

LOOKUP = "ngram"  # the draft that is no model: prompt lookup, by its name in configs
_EPOCH = 1
_HIGHEST_ADAPTIVE_K = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. If `eos_ids` is empty, the answer has exactly `max_tokens` tokens.

    Requests of one run share cached prefixes, where these are kept, if `group` is the same.
    """

    prompt_ids: tuple[int, ...]
    temperature: float
    seed: int
    max_tokens: int
    eos_ids: tuple[int, ...] = ()
    schema: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft: the draft, and k; None means adaptive."""

    draft: str
    k: int | None

    @property
    def name(self) -> str:
        """The name in tables."""
        return name_of(self.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A checkpoint to draft with, and how its weights are kept."""

    path: Path
    quantization: QuantizationName | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; seconds are since the run's start."""

    token_ids: tuple[int, ...]
    num_first: int  # tokens that came first, at once
    first_s: float
    ended_s: float
    num_cached: int  # tokens of the prompt that the target had already
    stats: SpeculationStats


@dataclass(frozen=True, slots=True)
class Served:
    """All answers of one run, in order of the requests."""

    answers: tuple[Answer, ...]
    elapsed_s: float

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def num_cached(self) -> int:
        """Tokens of all prompts that the target had already."""
        return sum(answer.num_cached for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all requests together, prompts included."""
        return self.num_tokens / self.elapsed_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second of single requests, each from its first tokens on.

        It is 0.0 if no tokens came after the first.
        """
        tokens = sum(len(one.token_ids) - one.num_first for one in self.answers)
        return tokens / sum(one.ended_s - one.first_s for one in self.answers) if tokens else 0.0

    def summary(self) -> LoopRun:
        """Tokens per round, acceptance, k and times of a round."""
        return summarise(self.tokens_per_s, [answer.stats for answer in self.answers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models to load, and their limits.

    A draft that is None is prompt lookup.
    """

    target: Path
    drafts: Mapping[str, DraftModel | None]
    dtype: DtypeName
    device: str
    threads: int
    max_model_len: int
    max_batch: int
    caches_prefixes: bool = False  # most sections ask the same prompts by turns
    has_kernels: bool = True  # False: torch's own operations


class Engines:
    """Loads the models; a context that frees everything at its end.

    Raises:
        ValueError: a checkpoint is missing or cannot be served.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        tokenizer = Tokenizer.load(models.target)
        self.target = self._load(models.target)
        self.drafts = {
            name: self._load(draft.path, draft.quantization)
            for name, draft in models.drafts.items()
            if draft is not None
        }
        self._runner = asyncio.Runner()
        self._device = InlineDevice()
        vocabulary = VocabularyInfo(
            tokenizer_json=(models.target / "tokenizer.json").read_text(encoding="utf-8"),
            vocab_size=self.target.vocab_size,
            eos_ids=tokenizer.eos_ids,
        )
        self._constraint = LocalConstraintPool(GrammarHost(GrammarCompiler(vocabulary)))
        # Engines that come first go first: drafts are ready before the target's pass.
        self._draft_pools = {
            name: self._pool(
                DraftEngine(runner, LocalMaskSource(self._constraint.host), _EPOCH), runner
            )
            for name, runner in self.drafts.items()
        }
        self._target_pool = self._pool(
            TargetEngine(self.target, LocalMaskSource(self._constraint.host), _EPOCH), self.target
        )
        self._generators: dict[Way, SpeculativeGenerator] = {}
        self._run_numbers = count()

    def __enter__(self) -> Self:
        """Return itself; nothing more to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free everything."""
        self._runner.run(self._device.close())
        self._runner.run(self._constraint.close())
        self._runner.close()

    def run(self, asks: Sequence[Ask], way: Way, batch: int = 1) -> Served:
        """Answer all requests, `batch` at a time."""
        return self._runner.run(self._serve_all(asks, way, batch))

    async def _serve_all(self, asks: Sequence[Ask], way: Way, batch: int) -> Served:
        places = asyncio.Semaphore(batch)
        name = f"run-{next(self._run_numbers)}"
        generator = self._generator(way)
        started_at = time.perf_counter()

        async def one(index: int) -> Answer:
            async with places:
                request = _request(f"{name}-{index}", asks[index], salt=f"{name}-")
                return await _answer(generator, request, started_at)

        answers = await asyncio.gather(*(one(index) for index in range(len(asks))))
        return Served(tuple(answers), time.perf_counter() - started_at)

    def _generator(self, way: Way) -> SpeculativeGenerator:
        if way not in self._generators:
            pool = None if way.k == 0 else self._draft_pools.get(way.draft)
            services = make_services(self._target_pool, pool, way.k)
            is_lookup = way.k != 0 and pool is None
            services = replace(
                services,
                constraint_pool=self._constraint,
                speculation=_lookup_limits(way) if is_lookup else services.speculation,
                limits=LIMITS,
            )
            self._generators[way] = SpeculativeGenerator(
                services, max_model_len=self.target.max_model_len
            )
        return self._generators[way]

    def _load(self, path: Path, quantization: QuantizationName | None = None) -> ModelRunner:
        models = self.models
        return ModelRunner(
            EngineConfig(
                model_path=str(path),
                dtype=models.dtype,
                device=models.device,
                max_model_len=models.max_model_len,
                kv_cache_tokens=models.max_batch * models.max_model_len,
                enable_prefix_caching=models.caches_prefixes,
                num_threads=models.threads,
                attention="auto" if models.has_kernels else "reference",
                quantization=quantization,
            )
        )

    def _pool(self, engine: DraftEngine | TargetEngine, runner: ModelRunner) -> InlinePool:
        return self._device.pool(engine, epoch=_EPOCH, max_model_len=runner.max_model_len)


def _lookup_limits(way: Way) -> SpeculationLimits:
    """Return the defaults of prompt lookup, at this k."""
    return SpeculationLimits(
        method=LOOKUP,
        num_speculative_tokens="adaptive" if way.k is None else way.k,
        max_num_speculative_tokens=max(_HIGHEST_ADAPTIVE_K, way.k or 0),
    )


def _request(request_id: str, ask: Ask, salt: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=ask.prompt_ids,
        sampling=Sampling(temperature=ask.temperature, seed=ask.seed),
        eos_ids=ask.eos_ids,
        max_tokens=ask.max_tokens,
        ignore_eos=not ask.eos_ids,
        grammar=None if ask.schema is None else Grammar(kind="json_schema", text=ask.schema),
        cache_salt=salt + ask.group,
    )


async def _answer(
    generator: SpeculativeGenerator, request: GenerationRequest, started_at: float
) -> Answer:
    token_ids: list[int] = []
    num_first, first_s = 0, 0.0
    finished: Finished | None = None
    async for event in generator.generate(request, NoText()):  # to its end: it frees the session
        if isinstance(event, Delta) and event.token_ids:
            token_ids += event.token_ids
            if not num_first:
                num_first, first_s = len(token_ids), time.perf_counter() - started_at
        elif isinstance(event, Finished):
            finished = event
    if finished is None:
        raise RuntimeError("the stream ended without a finish")
    ended_s = time.perf_counter() - started_at
    return Answer(
        tuple(token_ids),
        num_first,
        first_s or ended_s,
        ended_s,
        finished.num_cached_tokens,
        finished.speculation,
    )
