"""A trial of the router's event loop: costly requests block it.

The routes run in this process, over the demo's tokenizer, with answers that are there at once.
There is no model, no Ray, nothing else that takes time. Each attack is sent alone and five times at
once. The figure is the longest time between two turns of the loop. An idle loop is measured next to
it, because other programs of the machine cause gaps too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, create_app
from deployments.config.schema import RouterConfig
from deployments.ingress.service import served_model
from loadtest.client.attacks import JSON, Attack, fitting_logprob_requests, large_bodies
from loadtest.report.machine import ROOT
from loadtest.trial.checks import Limit
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Trial
from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import pack
from models.text.tokenizer import Tokenizer
from router.stats import SpeculationStats
from router.types import Delta, Detokenizer, Finished, GenerationRequest

_AT_ONCE = 5
_NUM_TOP = 20
_IDLE_S = 1.0


class _Ready:
    """A generator whose one token, with all logprobs that are asked for, is there at once."""

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        entry = pack(TokenLogprobs(17, -1.25, 3, tuple((i, -0.5 - i) for i in range(_NUM_TOP))))
        is_asked = request.sampling.num_prompt_logprobs >= 0
        entries = (entry,) * (len(request.prompt_ids) - 1) if is_asked else None
        yield Delta("a", (17,), prompt_logprobs=entries)
        yield Finished(
            finish_reason="length",
            num_prompt_tokens=len(request.prompt_ids),
            num_completion_tokens=1,
            speculation=SpeculationStats(),
        )


def _service(max_model_len: int, body_limit_bytes: int) -> HttpService:
    """Return the routes' service over the shipped tokenizer."""
    tokenizer = Tokenizer.load(ROOT / "models" / "demo" / "target")
    generator = _Ready()
    config = RouterConfig(
        model_name="m", max_model_len=max_model_len, body_limit_bytes=body_limit_bytes
    )
    return HttpService(
        model=served_model(config, tokenizer, created=0),
        generator=generator,
        health=HealthProbe(generator, tokenizer, "m", timeout_s=5.0),
        body_limit_bytes=config.body_limit_bytes,
        send_timeout_s=config.timeouts.token_gap_s,
    )


@asynccontextmanager
async def _watched_loop() -> AsyncIterator[Callable[[], float]]:
    """Milliseconds that the loop was blocked at the longest, within the block."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began_s)

    task = asyncio.create_task(watch())
    try:
        yield lambda: 1000 * longest_s
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True, kw_only=True)
class Blocked(Event):
    """Attacks that reach the routes all at once; none: an idle loop."""

    app: HttpService
    attacks: Sequence[Attack]
    stage: str = "process"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        gap_ms, scene.notes["statuses"] = asyncio.run(self._gap_ms())
        return {"gap_ms": gap_ms}

    async def _gap_ms(self) -> tuple[float, str]:
        transport = httpx.ASGITransport(create_app(self.app))
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://loop", timeout=300) as client,
            _watched_loop() as longest,
        ):
            if not self.attacks:
                await asyncio.sleep(_IDLE_S)
            posts = (client.post(a.path, content=a.body, headers=JSON) for a in self.attacks)
            answers = await asyncio.gather(*posts)
            gap_ms = longest()
        return gap_ms, " ".join(sorted({str(answer.status_code) for answer in answers}))


def _attacks(scene: Scene) -> Iterator[Blocked]:
    terms = scene.terms
    for max_model_len in terms.max_model_len:
        app = _service(max_model_len, terms.body_bytes)
        bodies = large_bodies("m", terms.body_bytes)
        crowds: dict[str, Sequence[Attack]] = {"nothing": ()}
        crowds |= {attack.name: [attack] for attack in bodies}
        crowds |= {f"{one.name}, {_AT_ONCE} at once": [one] * _AT_ONCE for one in bodies}
        crowds[f"{_AT_ONCE} different ones at once"] = bodies
        crowds |= {one.name: [one] for one in fitting_logprob_requests("m", max_model_len)}
        for name, attacks in crowds.items():
            for _ in range(terms.repeats):
                where = f"{max_model_len} tokens"
                yield Blocked(way=name, workload=where, app=app, attacks=attacks)


LOOP_GAPS = Trial(
    question="how long do costly requests block a router's event loop",
    terms={
        "max_model_len": (1024, 16384),
        "body_bytes": 1_048_576,
        "repeats": 5,
        "limit_ms": 50.0,  # of the median
    },
    quick={"max_model_len": (64,), "repeats": 1, "body_bytes": 700_000, "limit_ms": 5000.0},
    place=None,
    events=_attacks,
    claims=(Limit(measure="gap_ms", at_most="limit_ms"),),
)
