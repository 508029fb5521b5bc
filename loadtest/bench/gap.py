"""Measures how a long prompt delays a running stream: the time between its tokens.

It uses the same processes and links as `loadtest.bench.link`, without HTTP. A stream runs until it
has shown its pace; then a second session sends a long prompt. The measured gaps are the stream's
own. They end at the long prompt's first token, or when the stream has filled the context. They are
compared with the gaps before and, if the stream goes on, after, because the machine's own pace
drifts.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from loadtest.bench.link import LinkBench
from loadtest.bench.loop import NoText, make_request, name_of
from router.types import Delta, Finished, GenerationRequest, Generator

_WARM_UP_GAPS = 4  # the stream's own prompt, and the pass after it
_QUIET_GAPS = 24
_LEAST_GAPS = 3  # fewer have no median worth the name

_Times = asyncio.Queue[float | None]  # when each piece came; None: there will be no more


@dataclass(frozen=True, kw_only=True)
class GapRun:
    """Gaps between the pieces of a running stream; one piece is what one round committed."""

    way: str  # "k=0", "adaptive"
    num_prompt_tokens: int  # tokens of the long prompt
    num_gaps: int  # beside it
    quiet_ms: float  # median before the long prompt came and after its first token
    quiet_worst_ms: float
    beside_ms: float  # median beside it
    beside_worst_ms: float
    slowdown: float  # median / median
    first_token_s: float  # time of the long prompt's
    alone_first_token_s: float  # time for the same prompt without other requests


def measure_gaps(
    link: LinkBench, prompt: Sequence[int], long_prompt: Sequence[int], *, k: int | None
) -> GapRun:
    """Run the stream of `prompt` and prefill `long_prompt` beside it; k None is adaptive.

    Raises:
        ValueError: the stream had too few gaps beside the long prompt to say anything.
    """
    request = make_request("gap-stream", prompt, link.max_model_len - len(prompt))
    return link.use(k, partial(_measure, request=request, long_prompt=long_prompt, k=k))


async def _measure(
    generator: Generator, request: GenerationRequest, long_prompt: Sequence[int], k: int | None
) -> GapRun:
    alone_s = await _first_token_s(generator, long_prompt, "gap-alone")
    arrivals: list[float] = []
    times: _Times = asyncio.Queue()
    stream = asyncio.create_task(_stream(generator, request, times))
    try:
        await _shown(times, arrivals, _WARM_UP_GAPS + _QUIET_GAPS + 1)
        came_s = time.perf_counter()
        beside_s = await _first_token_s(generator, long_prompt, "gap-beside")
        await _shown(times, arrivals, _QUIET_GAPS + 1)
    finally:
        stream.cancel()
        (result,) = await asyncio.gather(stream, return_exceptions=True)
    if isinstance(result, Exception):
        raise result
    quiet, beside = gaps_around(arrivals, came_s, came_s + beside_s)
    quiet_ms, beside_ms = (1000 * statistics.median(gaps) for gaps in (quiet, beside))
    return GapRun(
        way=name_of(k),
        num_prompt_tokens=len(long_prompt),
        num_gaps=len(beside),
        quiet_ms=quiet_ms,
        quiet_worst_ms=1000 * max(quiet),
        beside_ms=beside_ms,
        beside_worst_ms=1000 * max(beside),
        slowdown=beside_ms / quiet_ms,
        first_token_s=beside_s,
        alone_first_token_s=alone_s,
    )


def gaps_around(
    arrivals: Sequence[float], from_s: float, to_s: float
) -> tuple[list[float], list[float]]:
    """Seconds between arrivals: outside of `from_s` to `to_s`, and those that ended within.

    Raises:
        ValueError: there are too few of either.
    """
    gaps = list(itertools.pairwise(arrivals))[_WARM_UP_GAPS:]
    quiet = [to - since for since, to in gaps if to <= from_s or since > to_s]
    beside = [to - since for since, to in gaps if from_s < to <= to_s]
    least = min(len(quiet), len(beside))
    if least < _LEAST_GAPS:
        raise ValueError(
            f"the stream had {least} gaps, at least {_LEAST_GAPS} are needed: the long prompt is "
            "too short to show anything"
        )
    return quiet, beside


async def _shown(times: _Times, arrivals: list[float], count: int) -> None:
    """Take what has come and `count` pieces more; the stream may end before that."""
    for _ in range(times.qsize() + count):
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


async def _first_token_s(generator: Generator, prompt: Sequence[int], name: str) -> float:
    """Seconds until the first token of `prompt`; the session ends with it."""
    began_s = time.perf_counter()
    async with aclosing(_items(generator, make_request(name, prompt, 1))) as items:
        await anext(items)
        return time.perf_counter() - began_s


def _items(
    generator: Generator, request: GenerationRequest
) -> AsyncGenerator[Delta | Finished, None]:
    return generator.generate(request, NoText())
