"""Experiments on the overhead of serving: the router's CPU time of an event, and the first token.

They send requests to the demo's config over HTTP, without prefix caching. The router's figure is
the CPU time of its process over the events that its clients got. An event brings the tokens of a
round. Every run has seeds of its own, because the router would otherwise know the answers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil

from deployments.local.pair import local_config
from loadtest.client.http import COMPLETIONS, ask, open_client
from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Terms, Turn
from loadtest.frame.passes import PassShape, tables_for, timed_pass
from loadtest.frame.ways import Way
from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts
from loadtest.service.served import POD_ENVIRONMENT, Config, Served, measured, set_spares
from models.engine.runner import ModelRunner

_CONFIG = ROOT / "configs" / "demo.yaml"
_MODEL = "outrider-demo"
_ROUTER = "ServeReplica:outrider:Router"
_MOST_MS_AN_EVENT = 0.3
_MOST_MS_TO_FIRST = 10.0
_NUM_FIRST = 15  # prompts, by turns
_SEEDS = itertools.count(1)


@contextmanager
def streams(
    terms: Terms, ways: Mapping[str, Way], environment: Mapping[str, str] = POD_ENVIRONMENT
) -> Iterator[Mapping[str, Turn]]:
    """Yield stories that are streamed all at once, for each way."""
    prompts = demo_prompts(terms.count, kind="story")
    with _service(environment) as service:
        yield {
            name: partial(run_streams, service, prompts, terms.tokens, way)
            for name, way in ways.items()
        }


@contextmanager
def first(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
    """Yield the first text of a client alone, and the target's own pass over the same prompt."""
    with _service() as service:
        target = ModelRunner(local_config(terms.models.tree(Way())).target)
        yield first_lines(service, target, demo_prompts(_NUM_FIRST, kind="story"))


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
    service: Served, prompts: Sequence[Sequence[int]], num_tokens: int, way: Way
) -> Mapping[str, float]:
    """Stream an answer to every prompt, all at once.

    Raises:
        RuntimeError: an answer failed or has another number of tokens.
    """
    return asyncio.run(_run_streams(service, prompts, num_tokens, way))


async def _run_streams(
    service: Served, prompts: Sequence[Sequence[int]], num_tokens: int, way: Way
) -> Mapping[str, float]:
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
    return {
        "cpu_ms_an_event": 1e3 * cpu_s / num_events,
        "cpu_share": cpu_s / elapsed_s,  # of one core, while it ran
        "num_events": num_events,
        "tokens_per_s": num_tokens * len(prompts) / elapsed_s,
    }


def first_lines(
    service: Served, target: ModelRunner, prompts: Sequence[Sequence[int]]
) -> dict[str, Turn]:
    """Return both lines; a turn of each has the next prompt, from the first again at their end."""

    def line(measured: Callable[[Sequence[int]], float]) -> Turn:
        left = itertools.cycle(prompts)
        return lambda: {"first_ms": measured(next(left))}

    return {"http": line(partial(first_text_ms, service)), "pass": line(partial(_pass_ms, target))}


def first_text_ms(service: Served, prompt: Sequence[int]) -> float:
    """Milliseconds from a request of a client alone to its first text.

    Raises:
        RuntimeError: there was none.
    """

    async def run() -> float:
        async with open_client(service.base_url) as client:
            await client.get("/v1/models")  # the connection is there
            answer = await ask(client, _body(prompt, 2, Way()), path=COMPLETIONS)
        if answer.first_text_s is None:
            raise RuntimeError(answer.error or "no text came")
        return 1e3 * (answer.first_text_s - answer.began_s)

    return asyncio.run(run())


def _pass_ms(target: ModelRunner, prompt: Sequence[int]) -> float:
    shape = PassShape(1, len(prompt), 0)
    tables = tables_for(target, [shape])
    try:
        return timed_pass(target, shape, tables)()
    finally:
        for table in tables:
            table.free()


def _body(prompt: Sequence[int], num_tokens: int, way: Way) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "seed": next(_SEEDS),
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": {} if way.k is None else {"k": way.k},
    }


@contextmanager
def _service(environment: Mapping[str, str] = POD_ENVIRONMENT) -> Iterator[Served]:
    def change(tree: Config) -> None:
        arguments = tree["applications"][0]["args"]
        set_spares(tree, False)  # they would load while the first round is measured
        for part in ("target", "draft"):
            arguments[part]["enable_prefix_caching"] = False

    with measured(_CONFIG, change=change, environment=environment) as service:
        yield service


OVERHEAD = Experiment(
    question="what does serving cost: the router's CPU time of an event",
    lines={
        "streams of the demo": streams,
        "without the pods' environment": partial(streams, environment={}),
    },
    ways={"adaptive": Way(), "k=0": Way(k=0)},
    stages=("http",),
    batches=(32,),
    goals=tuple(
        Goal(way=way, measure="cpu_ms_an_event", at_most=_MOST_MS_AN_EVENT)
        for way in ("adaptive", "k=0")
    ),
    tokens=128,
    count=1,
)

FIRST_TEXT = Experiment(
    question="how much later than the target's pass does the first token come over HTTP",
    lines={"prompts of the demo": first},
    stages=("http",),
    goals=(
        Goal(
            way="http",
            to="pass",
            measure="first_ms",
            by="difference",
            at_most=_MOST_MS_TO_FIRST,
        ),
    ),
    repeats=_NUM_FIRST,
)
