"""Measures how long costly requests block a router's event loop.

    python -m loadtest.hostile.loop_gaps --output loadtest/results/loop-gaps.json

The routes run in this process, over the demo's tokenizer, with answers that are there at once.
There is no model, no Ray, nothing else that takes time. Each attack is sent alone and five times at
once. The figure is the longest time between two turns of the loop. An idle loop is measured next to
it, because other programs of the machine cause gaps too. The command fails (status 1) if a median
is above `--limit-ms`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, create_app
from deployments.config.schema import RouterConfig
from deployments.ingress.service import served_model
from loadtest.hostile.attacks import Attack, fitting_logprob_requests, large_bodies
from loadtest.report.machine import ROOT
from loadtest.trial import frame
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


def make_app(max_model_len: int, body_limit_bytes: int) -> HttpService:
    """Return the routes' service over the shipped tokenizer."""
    tokenizer = Tokenizer.load(ROOT / "models" / "demo" / "target")
    generator = _Ready()
    config = RouterConfig(
        model_name="m", max_model_len=max_model_len, body_limit_bytes=body_limit_bytes
    )
    return HttpService(
        model=served_model(config, tokenizer, created=0),
        generator=generator,
        health=HealthProbe(generator, tokenizer, timeout_s=5.0),
        body_limit_bytes=config.body_limit_bytes,
        send_timeout_s=config.timeouts.token_gap_s,
    )


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Callable[[], float]]:
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


async def gap_ms(client: httpx.AsyncClient, attacks: Sequence[Attack]) -> tuple[float, str]:
    """Return the longest gap while these are answered, all at once, and their statuses."""
    async with watched_loop() as longest:
        headers = {"content-type": "application/json"}
        answers = await asyncio.gather(
            *(client.post(a.path, content=a.body, headers=headers) for a in attacks)
        )
        gap = longest()
    return gap, " ".join(sorted({str(answer.status_code) for answer in answers}))


@dataclass(kw_only=True)
class Report(frame.Report):
    """A line for each attack."""

    gaps: list[dict[str, object]] = field(default_factory=list)

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {"lines": self.gaps, "violations": len(self.problems)}


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Measure, and hold the medians to their limit."""
    report.gaps = asyncio.run(measure(arguments))
    report.violations += [
        f"{line['attack']}: {line['median_ms']} ms, limit {arguments.limit_ms:g}"
        for line in report.gaps
        if float(str(line["median_ms"])) > arguments.limit_ms
    ]


async def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Measure a line for each attack, alone and several at once, and for the idle loop."""
    lines: list[dict[str, object]] = []
    for max_model_len in arguments.max_model_len:
        service = make_app(max_model_len, arguments.body_bytes)
        bodies = large_bodies("m", arguments.body_bytes)
        crowds = [(attack.name, [attack]) for attack in bodies]
        crowds += [(f"{attack.name}, {_AT_ONCE} at once", [attack] * _AT_ONCE) for attack in bodies]
        crowds.append((f"{_AT_ONCE} different ones at once", bodies))
        crowds += [(a.name, [a]) for a in fitting_logprob_requests("m", max_model_len)]
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://loop", timeout=300
        ) as client:
            for name, attacks in [("nothing", []), *crowds]:
                gaps, statuses = await _repeated(client, attacks, arguments.repeats)
                line = {
                    "max_model_len": max_model_len,
                    "attack": name,
                    "median_ms": round(statistics.median(gaps), 1),
                    "worst_ms": round(max(gaps), 1),
                    "statuses": statuses,
                }
                print(*line.values(), sep="\t", flush=True)
                lines.append(line)
    return lines


async def _repeated(
    client: httpx.AsyncClient, attacks: Sequence[Attack], repeats: int
) -> tuple[list[float], str]:
    gaps, statuses = [], ""
    for _ in range(repeats):
        if attacks:
            gap, statuses = await gap_ms(client, attacks)
        else:
            async with watched_loop() as longest:
                await asyncio.sleep(_IDLE_S)
                gap = longest()
        gaps.append(gap)
    return gaps, statuses


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.hostile.loop_gaps",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--max-model-len", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--body-bytes", type=int, default=1_048_576)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit-ms", type=float, default=50.0)
    parser.add_argument("--output", type=Path, default=None, help="JSON file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it from the command line; the exit status."""
    return frame.run_trial("loadtest.hostile.loop_gaps", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
