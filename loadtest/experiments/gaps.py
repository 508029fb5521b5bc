"""An experiment on long prompts: how much later the tokens of a stream come beside one.

A stream runs until it has shown its pace; then a second session sends a long prompt. Gaps are the
stream's own. They end at the long prompt's first token, or when the stream has filled the context.
They are compared with the gaps before and, if the stream goes on, after, because the machine's own
pace drifts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import count, pairwise

from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Lines, Terms, Turn
from loadtest.frame.links import LinkStage
from loadtest.frame.runs import Ask
from loadtest.frame.stages import NoText, request_of
from loadtest.frame.ways import Way
from loadtest.report.prompts import demo_prompts
from router.types import Delta, Finished, GenerationRequest, Generator

_WARM_UP_GAPS = 4  # the stream's own prompt, and the pass after it
_QUIET_GAPS = 24
_LEAST_GAPS = 3  # fewer have no median worth the name
_MAX_MODEL_LEN = 2048

_Times = asyncio.Queue[float | None]  # when each piece came; None: there will be no more


def beside(num_tokens: int) -> Lines:
    """Return a stream beside a prompt of so many tokens, over links, for each way."""

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        prompt, *others = demo_prompts(2, kind="story")
        text = [token for other in (prompt, *others) for token in other]
        long_prompt = (text * (1 + num_tokens // len(text)))[:num_tokens]
        numbers = count()
        with LinkStage(terms.models) as link:

            def turn(way: Way) -> Mapping[str, float]:
                name = f"gap-{next(numbers)}"
                room = terms.models.engine["max_model_len"] - len(prompt)
                stream, alone, late = (
                    request_of(
                        Ask(prompt_ids=tuple(ids), max_tokens=limit), way, f"{name}-{part}", name
                    )
                    for part, ids, limit in (
                        ("stream", prompt, room),
                        ("alone", long_prompt, 1),
                        ("beside", long_prompt, 1),
                    )
                )
                return link.use(way, lambda router: _measure(router, stream, alone, late))

            yield {name: partial(turn, way) for name, way in ways.items()}

    return lines


async def _measure(
    generator: Generator,
    request: GenerationRequest,
    alone: GenerationRequest,
    late: GenerationRequest,
) -> Mapping[str, float]:
    alone_s = await _first_token_s(generator, alone)
    arrivals: list[float] = []
    times: _Times = asyncio.Queue()
    stream = asyncio.create_task(_stream(generator, request, times))
    try:
        await _shown(times, arrivals, _WARM_UP_GAPS + _QUIET_GAPS + 1)
        came_s = time.perf_counter()
        beside_s = await _first_token_s(generator, late)
        await _shown(times, arrivals, _QUIET_GAPS + 1)
    finally:
        stream.cancel()
        (result,) = await asyncio.gather(stream, return_exceptions=True)
    if isinstance(result, Exception):
        raise result
    quiet, slowed = gaps_around(arrivals, came_s, came_s + beside_s)
    quiet_ms, beside_ms = (1e3 * statistics.median(gaps) for gaps in (quiet, slowed))
    return {
        "slowdown": beside_ms / quiet_ms,
        "quiet_ms": quiet_ms,
        "quiet_worst_ms": 1e3 * max(quiet),
        "beside_ms": beside_ms,
        "beside_worst_ms": 1e3 * max(slowed),
        "first_s": beside_s,
        "alone_first_s": alone_s,
    }


def gaps_around(
    arrivals: Sequence[float], from_s: float, to_s: float
) -> tuple[list[float], list[float]]:
    """Seconds between arrivals: outside of `from_s` to `to_s`, and those that ended within.

    Raises:
        ValueError: there are too few of either.
    """
    gaps = list(pairwise(arrivals))[_WARM_UP_GAPS:]
    quiet = [to - since for since, to in gaps if to <= from_s or since > to_s]
    beside_it = [to - since for since, to in gaps if from_s < to <= to_s]
    least = min(len(quiet), len(beside_it))
    if least < _LEAST_GAPS:
        raise ValueError(
            f"the stream had {least} gaps, at least {_LEAST_GAPS} are needed: the long prompt is "
            "too short to show anything"
        )
    return quiet, beside_it


async def _shown(times: _Times, arrivals: list[float], num_pieces: int) -> None:
    """Take what has come and `num_pieces` more; the stream may end before that."""
    for _ in range(times.qsize() + num_pieces):
        came_s = await times.get()
        if came_s is None:
            times.put_nowait(None)
            return
        arrivals.append(came_s)


async def _stream(generator: Generator, request: GenerationRequest, times: _Times) -> None:
    """Note when pieces come, until cancelled."""
    try:
        async with aclosing(_items(generator, request)) as items:
            async for item in items:
                if isinstance(item, Delta):
                    times.put_nowait(time.perf_counter())
    finally:
        times.put_nowait(None)


async def _first_token_s(generator: Generator, request: GenerationRequest) -> float:
    """Seconds until the first token of a prompt; the session ends with it."""
    began_s = time.perf_counter()
    async with aclosing(_items(generator, request)) as items:
        await anext(items)
        return time.perf_counter() - began_s


def _items(
    generator: Generator, request: GenerationRequest
) -> AsyncGenerator[Delta | Finished, None]:
    return generator.generate(request, NoText())


GAPS = Experiment(
    question="how much later do the tokens of a stream come beside a long prompt",
    lines={"a prompt of 2000 tokens": beside(2000)},
    ways={"k=0": Way(k=0), "adaptive": Way()},
    stages=("link",),
    goals=tuple(Goal(way=way, measure="slowdown", at_most=2.0) for way in ("k=0", "adaptive")),
    engine={"max_model_len": _MAX_MODEL_LEN, "kv_cache_tokens": 16 * _MAX_MODEL_LEN},
    repeats=3,
)
