"""Measures the overhead of serving: the router's CPU time of an event, and the first token.

    python -m loadtest.overhead --output loadtest/results/overhead.json

It sends requests to the demo's config over HTTP, without prefix caching. `--streams` stories run at
a time, with adaptive k and with k = 0. The figure is the CPU time of the router's process over the
events that its clients got. An event brings the tokens of a round. Every run has seeds of its own,
because the router would otherwise know the answers. Then one client runs alone. The time to its
first text is compared with the target's own pass over the same prompt. The pass runs in this
process, by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from loadtest.bench.claims import Claim
from loadtest.bench.loop import pair_runners
from loadtest.bench.passes import PassShape, tables_for, timed_pass
from loadtest.client.http import COMPLETIONS, ask, open_client
from loadtest.report.interleaved import interleave
from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts
from loadtest.report.record import head, write_json
from loadtest.service.served import POD_ENVIRONMENT, Config, Served, served

_CONFIG = ROOT / "configs" / "demo.yaml"
_MODEL = "outrider-demo"
_ROUTER = "ServeReplica:outrider:Router"
_MAX_MODEL_LEN = 512
_WAYS: dict[str, dict[str, Any]] = {"adaptive": {}, "k=0": {"k": 0}}
_MOST_MS_AN_EVENT = 0.3
_MOST_MS_TO_FIRST = 10.0
_SEEDS = itertools.count(1)


@dataclass(frozen=True)
class RouterCost:
    """The cost of one run of streams to the router's process."""

    cpu_ms_an_event: float
    cpu_share: float  # share of one core, while it ran
    num_events: int
    num_tokens: int
    tokens_per_s: float


def router_process(service: Served) -> psutil.Process:
    """Return the process of the router's only replica.

    Raises:
        RuntimeError: there is not exactly one.
    """
    found = service.descendants(_ROUTER)
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} processes are named {_ROUTER}, want 1")
    return found[0]


def run_streams(
    service: Served, prompts: Sequence[Sequence[int]], num_tokens: int, way: str
) -> RouterCost:
    """Stream an answer to every prompt, all at once.

    Raises:
        RuntimeError: an answer failed or has another number of tokens.
    """
    return asyncio.run(_run_streams(service, prompts, num_tokens, way))


async def _run_streams(
    service: Served, prompts: Sequence[Sequence[int]], num_tokens: int, way: str
) -> RouterCost:
    process, num_events = router_process(service), 0

    def note_event() -> None:
        nonlocal num_events
        num_events += 1

    async with open_client(service.base_url) as client:
        before, began_s = process.cpu_times(), time.perf_counter()
        answers = await asyncio.gather(
            *(
                ask(client, _body(prompt, num_tokens, way), path=COMPLETIONS, on_event=note_event)
                for prompt in prompts
            )
        )
        elapsed_s, after = time.perf_counter() - began_s, process.cpu_times()
    for answer in answers:
        if answer.error or answer.num_completion_tokens != num_tokens:
            raise RuntimeError(answer.error or f"{answer.num_completion_tokens} tokens came")
    cpu_s = after.user + after.system - before.user - before.system
    total = num_tokens * len(prompts)
    return RouterCost(
        cpu_ms_an_event=1e3 * cpu_s / num_events,
        cpu_share=cpu_s / elapsed_s,
        num_events=num_events,
        num_tokens=total,
        tokens_per_s=total / elapsed_s,
    )


def _body(prompt: Sequence[int], num_tokens: int, way: str) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "seed": next(_SEEDS),
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": _WAYS[way],
    }


def first_token_ms(
    service: Served, pair: Path, prompts: Sequence[Sequence[int]]
) -> dict[str, list[float]]:
    """Measure the first text over HTTP and the target's pass over the same prompt, by turns."""
    target, _ = pair_runners(pair, max_model_len=_MAX_MODEL_LEN, num_threads=2)
    found: dict[str, list[float]] = {"http": [], "pass": []}
    for turn, prompt in enumerate((prompts[0], *prompts)):
        text_ms = first_text_ms(service, prompt)
        shape = PassShape(1, len(prompt), 0)
        tables = tables_for(target, [shape])
        try:
            pass_ms = timed_pass(target, shape, tables)()
        finally:
            for table in tables:
                table.free()
        if turn > 0:  # the first one makes what is made at a first request
            found["http"].append(text_ms)
            found["pass"].append(pass_ms)
    return found


def first_text_ms(service: Served, prompt: Sequence[int]) -> float:
    """Milliseconds from a request of a client alone to its first text.

    Raises:
        RuntimeError: there was none.
    """

    async def run() -> float:
        async with open_client(service.base_url) as client:
            await client.get("/v1/models")  # the connection is there
            answer = await ask(client, _body(prompt, 2, "adaptive"), path=COMPLETIONS)
        if answer.first_text_s is None:
            raise RuntimeError(answer.error or "no text came")
        return 1e3 * (answer.first_text_s - answer.began_s)

    return asyncio.run(run())


def claims_of(
    costs: Mapping[str, Sequence[RouterCost]],
    first_ms: Mapping[str, Sequence[float]],
    num_streams: int,
) -> list[Claim]:
    """Return the limits of the overhead as claims."""
    claims = [
        Claim(
            f"{num_streams} streams, {way}: the router's CPU time of an event, ms",
            statistics.median(run.cpu_ms_an_event for run in runs),
            "at most",
            _MOST_MS_AN_EVENT,
        )
        for way, runs in costs.items()
    ]
    more = [a - b for a, b in zip(first_ms["http"], first_ms["pass"], strict=True)]
    text = "first token over HTTP: ms more than the target's pass over the prompt"
    return [*claims, Claim(text, statistics.median(more), "at most", _MOST_MS_TO_FIRST)]


def _change(tree: Config) -> None:
    arguments = tree["applications"][0]["args"]
    for part in ("target", "draft"):
        arguments[part]["enable_prefix_caching"] = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.overhead", description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--repeats", type=int, default=5, help="of each line, by turns")
    parser.add_argument("--first", type=int, default=15, help="prompts of the first token")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    prompts = demo_prompts(max(arguments.streams, arguments.first), kind="story")
    with served(_CONFIG, change=_change, environment=POD_ENVIRONMENT) as service:
        streams = partial(run_streams, service, prompts[: arguments.streams], arguments.tokens)
        lines = {way: partial(streams, way) for way in _WAYS}
        for line in lines.values():  # warm
            line()
        costs = interleave(lines, arguments.repeats)
        pair = ROOT / "models" / "demo"
        first_ms = first_token_ms(service, pair, prompts[: arguments.first])
    claims = claims_of(costs, first_ms, arguments.streams)
    for claim in claims:
        print(claim)
    write_json(
        arguments.output,
        {
            **head("python -m loadtest.overhead", words, vars(arguments)),
            "router": {way: [asdict(run) for run in runs] for way, runs in costs.items()},
            "first_token_ms": first_ms,
            "claims": [claim.record() for claim in claims],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
