"""Ours, asked like the other server: engines and loop in this process, or a service over HTTP.

The process has no link and no HTTP. The other server's own timings do not contain them either.
Prefix caching is off: every way reads its prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deployments.local.inline import InlineDevice, InlinePool
from loadtest.bench.loop import NoText
from loadtest.client.http import READ_TIMEOUT_S, complete
from loadtest.peer.timed import Timed
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, section, served
from models.config import DtypeName, EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.services import Services
from router.types import Delta, Finished, GenerationRequest, SpeculationSettings

_EPOCH = 1
_CONFIGS = {False: "smollm2.yaml", True: "demo.yaml"}  # by whether there is a draft model
_TIMEOUTS = SessionLimits(draft_ms=10_000)  # on a slow machine a draft is waited for


@dataclass(frozen=True)
class Way:
    """A way of ours to draft: the drafter (None: the preferred one) and k (None: adaptive)."""

    name: str
    k: int | None
    drafter: str | None = None

    @property
    def is_plain(self) -> bool:
        """True if nothing is drafted."""
        return self.k == 0


@dataclass(frozen=True)
class Checkpoints:
    """The folders to serve, and the most tokens of prompt and answer together."""

    target: Path
    draft: Path | None
    dtype: DtypeName
    max_model_len: int


class Engines:
    """Target and draft in this process, with their threads."""

    def __init__(self, models: Checkpoints, threads: int) -> None:
        self._target = _runner(models.target, models, threads)
        self._draft = None if models.draft is None else _runner(models.draft, models, threads)
        self._num_runs = 0

    def run(
        self, warm_up: Sequence[int], prompts: Sequence[Sequence[int]], num_tokens: int, way: Way
    ) -> list[Timed]:
        """Answer all prompts greedily, one after another, after one that is not timed.

        Router and drafters are new in every run: no run knows the answers of the last.
        """
        self._num_runs += 1
        return asyncio.run(self._run([warm_up, *prompts], num_tokens, way))[1:]

    async def _run(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, way: Way
    ) -> list[Timed]:
        device = InlineDevice()
        draft_pools = {}
        if self._draft is not None and not way.is_plain:
            draft = DraftEngine(self._draft, NoMaskSource(), _EPOCH)
            draft_pools[POOL] = self._pool(device, draft, self._draft)
        target = TargetEngine(self._target, NoMaskSource(), _EPOCH)
        services = Services(
            target_pool=self._pool(device, target, self._target),
            draft_pools=draft_pools,
            constraint_pool=None,
            speculation=SpeculationLimits(max_num_speculative_tokens=max(8, way.k or 0)),
            limits=_TIMEOUTS,
        )
        generator = SpeculativeGenerator(services, max_model_len=self._target.max_model_len)
        try:
            return [
                await self._answer(generator, f"{self._num_runs}-{index}", prompt, num_tokens, way)
                for index, prompt in enumerate(prompts)
            ]
        finally:
            await device.close()

    @staticmethod
    def _pool(
        device: InlineDevice, engine: DraftEngine | TargetEngine, runner: ModelRunner
    ) -> InlinePool:
        return device.pool(engine, epoch=_EPOCH, max_model_len=runner.max_model_len)

    async def _answer(
        self,
        generator: SpeculativeGenerator,
        name: str,
        prompt: Sequence[int],
        num_tokens: int,
        way: Way,
    ) -> Timed:
        request = GenerationRequest(
            request_id=name,
            prompt_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            eos_ids=self._target.eos_ids,
            max_tokens=num_tokens,
            speculation=SpeculationSettings(
                enabled=not way.is_plain, num_speculative_tokens=way.k, drafter=way.drafter
            ),
        )
        pieces: list[tuple[int, ...]] = []
        times_s: list[float] = []
        finished: Finished | None = None
        began_s = time.perf_counter()
        async for event in generator.generate(request, NoText()):  # to its end: frees the session
            if isinstance(event, Delta):
                pieces.append(event.token_ids)
                times_s.append(time.perf_counter())
            else:
                finished = event
        if finished is None:
            raise RuntimeError("the stream ended without a finish")
        stats = finished.speculation
        token_ids = tuple(token for piece in pieces for token in piece)
        return Timed(
            num_tokens=len(token_ids),
            num_decoded=len(token_ids) - len(pieces[0]),
            decode_s=times_s[-1] - times_s[0],
            whole_s=times_s[-1] - began_s,
            token_ids=token_ids,
            num_drafted=stats.num_draft_tokens,
            num_accepted=stats.num_accepted_draft_tokens,
        )


class Service:
    """Ours over HTTP. Made by `service_of`."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client = client
        self._model = model

    def ask(self, prompt: Sequence[int], num_tokens: int, way: Way) -> Timed:
        """Return one greedy answer, streamed and timed by the client's clock.

        Raises:
            RuntimeError: it is an error.
        """
        speculation: dict[str, Any] = {"enabled": not way.is_plain}
        if way.k:
            speculation["k"] = way.k
        if way.drafter is not None:
            speculation["drafter"] = way.drafter
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "repetition_penalty": 1.0,  # the peer reads no generation_config.json
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": speculation,
        }
        answer = complete(self._client, "/v1/completions", body)
        if answer.first_text_s is None or answer.last_text_s is None:
            raise RuntimeError("an answer without text")
        return Timed(
            num_tokens=answer.num_completion_tokens,
            num_decoded=answer.num_completion_tokens - 1,
            decode_s=answer.last_text_s - answer.first_text_s,
            whole_s=answer.last_text_s - answer.began_s,
            num_drafted=answer.num_draft_tokens,
            num_accepted=int(answer.speculation.get("num_accepted_draft_tokens", 0)),
        )


@contextmanager
def service_of(models: Checkpoints, threads: int, highest_k: int) -> Iterator[Service]:
    """Serve the checkpoints until the block ends, target and draft with `threads` each."""
    names: list[str] = []

    def change(config: Config) -> None:
        arguments = config["applications"][0]["args"]
        for part, path in (("target", models.target), ("draft", models.draft)):
            if path is not None:
                arguments[part] |= {
                    "model_path": str(path.resolve()),
                    "dtype": models.dtype,
                    "num_threads": threads,
                    "max_model_len": models.max_model_len,
                    "enable_prefix_caching": False,
                }
        arguments["target"]["heads"] = None  # those of the config are for its own target
        section(config, "router.speculation")["max_num_speculative_tokens"] = max(8, highest_k)
        section(config, "router.timeouts")["draft_ms"] = 10_000  # as in the process
        names.append(arguments["router"]["model_name"])

    config = ROOT / "configs" / _CONFIGS[models.draft is not None]
    with (
        served(config, change=change, environment=POD_ENVIRONMENT) as service,
        httpx.Client(base_url=service.base_url, timeout=READ_TIMEOUT_S) as client,
    ):
        yield Service(client, names[0])


def _runner(path: Path, models: Checkpoints, threads: int) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(path),
            dtype=models.dtype,
            device="cpu",
            max_model_len=models.max_model_len,
            kv_cache_tokens=2 * models.max_model_len,
            enable_prefix_caching=False,
            num_threads=threads,
        )
    )
