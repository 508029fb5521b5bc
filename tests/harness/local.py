"""The whole service in one process: real engines, grammars and router, the routes; no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, create_app
from deployments.api.keys import ApiKeys
from deployments.config.schema import AppConfig, RouterConfig
from deployments.config.sections.models import ModelConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.ingress.service import served_model
from deployments.local.engines import LocalEngines
from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from models.config import DtypeName, EngineConfig, QuantizationName
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.masks import GrammarHandler
from models.kv.block_pool import BlockPool
from models.protocol.messages import Grammar, Sampling, Verification
from models.text.tokenizer import Tokenizer
from models.text.tools.prompt import TurnFormats
from router.drafters.choice import drafter_names
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.services import Services
from router.types import Delta, Detokenizer, Finished, GenerationRequest, SpeculationSettings

DEMO = Path(__file__).parents[2] / "models" / "demo"
VOCAB_SIZE = 4096  # of the demo pair
NO_LOOKUP = SpeculationLimits(prompt_lookup_max=0, suffix_decoding_max_tree_depth=0)


@lru_cache(maxsize=1)
def demo_tokenizer() -> Tokenizer:
    return Tokenizer.load(DEMO / "target")


def demo_grammar_host() -> GrammarHost:
    vocabulary = VocabularyInfo(
        tokenizer_json=(DEMO / "target" / "tokenizer.json").read_text(encoding="utf-8"),
        vocab_size=VOCAB_SIZE,
        eos_ids=demo_tokenizer().eos_ids,
    )
    return GrammarHost(GrammarCompiler(vocabulary))


class IdDetokenizer:
    """Shows ids as text, so that tests compare tokens and need no vocabulary."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)

    def flush(self) -> str:
        return ""


@dataclass(frozen=True)
class LocalService:
    """A running service and the engines behind it."""

    generator: SpeculativeGenerator
    target: TargetEngine
    draft: DraftEngine | None
    target_pool: LocalEnginePool
    draft_pool: LocalEnginePool | None
    services: Services

    async def freed(self) -> bool:
        """Whether the target gets rid of all sessions and blocks within 5 s of their end."""
        for _ in range(500):
            load = self.target.load()
            if load.num_sessions == 0 and load.num_free_blocks == load.num_blocks:
                return True
            await asyncio.sleep(0.01)
        return False

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer | None = None
    ) -> tuple[list[int], Finished, str]:
        """Run a request to its end; its token ids, its finish, its text."""
        ids: list[int] = []
        text = ""
        async for event in self.generator.generate(request, detokenizer or IdDetokenizer()):
            if isinstance(event, Finished):
                return ids, event, text
            assert isinstance(event, Delta)
            ids.extend(event.token_ids)
            text += event.text
        raise AssertionError("the stream ended without a finish")


def make_request(
    request_id: str,
    prompt_ids: Sequence[int],
    *,
    k: int | None = None,
    drafter: str | None = None,
    enabled: bool = True,
    max_tokens: int = 48,
    temperature: float = 0.0,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    grammar: Grammar | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    verification: Verification = "coupled",
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(
            temperature=temperature,
            seed=seed,
            top_p=top_p,
            top_k=top_k,
            verification=verification,
        ),
        eos_ids=tuple(eos_ids),
        max_tokens=max_tokens,
        grammar=grammar,
        speculation=SpeculationSettings(enabled=enabled, num_speculative_tokens=k, drafter=drafter),
    )


async def answers(
    service: LocalService, prompts: Sequence[Sequence[int]], temperature: float, k: int | None
) -> list[tuple[list[int], Finished]]:
    """Ask all prompts at once; k None: chosen live."""
    outcomes = await asyncio.gather(
        *(
            service.generate(
                make_request(
                    f"{k}-{i}", prompt, k=k, max_tokens=60, temperature=temperature, seed=3
                )
            )
            for i, prompt in enumerate(prompts)
        )
    )
    return [(ids, finished) for ids, finished, _ in outcomes]


@asynccontextmanager
async def local_service(
    target_path: Path,
    draft_path: Path | None,
    *,
    dtype: DtypeName = "bfloat16",
    grammar_host: GrammarHandler | None = None,
    rewards: RewardWorkers | None = None,
    limits: SessionLimits | None = None,
    speculation: SpeculationLimits | None = None,
    kv_cache_tokens: int = 8192,
    block_size: int = 64,
    max_model_len: int = 1024,
    queued_interval_s: float = 1.0,
    draft_quantization: QuantizationName | None = None,
    draft_max_model_len: int | None = None,
    draft_kv_cache_tokens: int | None = None,
    link_to: Callable[[str, Any], Any] = lambda name, pool: pool,
    further_drafts: Mapping[str, Path] | None = None,
    planner: RouterPlanner | None = None,
    heads: Path | None = None,
) -> AsyncIterator[LocalService]:
    """Engines in threads of their own over lent models; `link_to` puts a link between the router
    and a pool; `further_drafts` are draft models beside the first, by name.

    `planner` chooses k in place of a new one; `heads` draft in the target's process.
    """
    shared: dict[str, Any] = {
        "dtype": dtype,
        "block_size": block_size,
        "max_model_len": max_model_len,
    }
    drafts: dict[str, dict[str, Any]] = {
        POOL: {
            **shared,
            "model_path": str(draft_path),
            "quantization": draft_quantization,
            "max_model_len": draft_max_model_len or max_model_len,
            "kv_cache_tokens": draft_kv_cache_tokens or kv_cache_tokens,
        }
    }
    shared["kv_cache_tokens"] = kv_cache_tokens
    for name, path in (further_drafts or {}).items():
        drafts[name] = {**shared, "model_path": str(path)}
    if draft_path is None:
        del drafts[POOL]
    target = {**shared, "model_path": str(target_path), "heads": heads and str(heads)}
    config = AppConfig(target=ModelConfig(**target))
    with ExitStack() as held:
        engines = LocalEngines(
            config,
            held.enter_context(RUNNERS.lent(EngineConfig(**target))),
            {
                name: held.enter_context(RUNNERS.lent(EngineConfig(**draft)))
                for name, draft in drafts.items()
            },
            None if grammar_host is None else LocalConstraintPool(grammar_host, rewards=rewards),
            has_threads=True,
            queued_interval_s=queued_interval_s,
        )
        services = engines.services(
            link=link_to,
            planner=planner or RouterPlanner(PassCosts()),
            speculation=speculation or NO_LOOKUP,
            limits=limits or SessionLimits(draft_ms=20_000),
        )
        draft_pool = engines.draft_pools.get(POOL)
        try:
            yield LocalService(
                SpeculativeGenerator(services, max_model_len=max_model_len),
                engines.target_pool.engine,  # type: ignore[arg-type]
                draft_pool and draft_pool.engine,  # type: ignore[arg-type]
                engines.target_pool,  # type: ignore[arg-type]
                draft_pool,  # type: ignore[arg-type]
                services,
            )
        finally:
            await services.comparison.close()
            await engines.close()


class Runners:
    """Loaded models, lent to one service at a time with an empty KV cache.

    Args:
        most: idle ones that are kept.
        most_bytes: of weights, of one that is kept; a real model is asked in one module only.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._idle: dict[str, ModelRunner] = {}  # by their config; the last one was used last

    @contextmanager
    def lent(self, config: EngineConfig) -> Iterator[ModelRunner]:
        """Lend a model until the block ends; it is loaded if none of its config is idle."""
        key = config.model_dump_json()
        runner = self._idle.pop(key, None) or ModelRunner(config)
        runner.pool = BlockPool(runner.pool.num_blocks, runner.pool.block_size)
        try:
            yield runner
        finally:
            if runner.weight_bytes <= self._most_bytes:
                self._idle[key] = runner
            while len(self._idle) > self._most:
                del self._idle[next(iter(self._idle))]


RUNNERS = Runners(most=4, most_bytes=2**26)


# --- the routes over it ---------------------------------------------------------------------------


@asynccontextmanager
async def demo_app(
    draft: Path | None = DEMO / "draft",
    *,
    formats: TurnFormats | None = None,
    api_keys: ApiKeys | None = None,
    **options: Any,
) -> AsyncIterator[Starlette]:
    """The application; `draft` None: no draft model, `formats` None: those of the demo's template.

    `options` are those of `local_service`.
    """
    options = {"max_model_len": 256} | options
    tokenizer = demo_tokenizer()
    async with local_service(DEMO / "target", draft, **options) as service:
        config = RouterConfig(model_name="demo", max_model_len=options["max_model_len"])
        shared = service.services
        drafters = drafter_names(shared.speculation, shared.draft_pools)
        model = served_model(config, tokenizer, created=0, drafters=drafters)
        yield create_app(
            HttpService(
                model=replace(model, formats=formats or model.formats),
                generator=service.generator,
                health=HealthProbe(service.generator, tokenizer, "demo", timeout_s=10.0),
                body_limit_bytes=config.body_limit_bytes,
                send_timeout_s=config.timeouts.token_gap_s,
                api_keys=api_keys,
            )
        )


@asynccontextmanager
async def demo_http(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with demo_app(**options) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            client.timeout = httpx.Timeout(60.0)
            yield client
