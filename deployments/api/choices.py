"""Several answers to one request: sessions that run side by side, their events as one stream.

Each of a request's prompts has `n` choices, in order. Choice j of prompt i is number i * n + j. It
is sampled with seed + j, whatever i is, so each prompt gets the answers that it gets alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from router.stats import SpeculationStats
from router.types import Delta, Finished, GenerationRequest

ChoiceItems = AsyncGenerator[tuple[int, Delta | Finished], None]  # each with its choice's index

_Queue = asyncio.Queue[tuple[int, Delta | Finished] | Exception | None]

_NUM_AHEAD = 16  # items a choice may be ahead of what is read


def choices_of(
    prompts: Sequence[GenerationRequest], count: int, *, is_stream: bool
) -> list[GenerationRequest]:
    """Return the requests of all choices, `count` for each prompt; the first is the prompt's own.

    Args:
        prompts: a request for each prompt, alike but for the prompt; ids are made from the first's.
        count: choices for each.
        is_stream: whether the answer is a stream. There every choice asks for the prompt's
            logprobs, since none waits for another; else only the first of each prompt does.
    """
    head_id = prompts[0].request_id
    requests: list[GenerationRequest] = []
    for request in prompts:
        for j in range(count):
            index = len(requests)
            sampling = request.sampling
            if j:
                sampling = msgspec.structs.replace(
                    sampling,
                    seed=(sampling.seed + j) % 2**64,
                    num_prompt_logprobs=sampling.num_prompt_logprobs if is_stream else -1,
                )
            request_id = f"{head_id}-{index}" if index else head_id
            requests.append(dataclasses.replace(request, request_id=request_id, sampling=sampling))
    return requests


def merged(choices: Sequence[ChoiceItems]) -> ChoiceItems:
    """Items of all choices as they come; of a single choice its own generator.

    The first error of any ends it. Closing it closes all choices.
    """
    return choices[0] if len(choices) == 1 else _merge(choices)


async def _merge(choices: Sequence[ChoiceItems]) -> ChoiceItems:
    queue: _Queue = asyncio.Queue(_NUM_AHEAD)
    tasks = [
        asyncio.create_task(_pump(items, queue), name=f"choice-{index}")
        for index, items in enumerate(choices)
    ]
    try:
        num_open = len(tasks)
        while num_open:
            tagged = await queue.get()
            if isinstance(tagged, Exception):
                raise tagged
            if tagged is None:
                num_open -= 1
            else:
                yield tagged
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(items: ChoiceItems, queue: _Queue) -> None:
    """Queue the items, then None or the error that ended them."""
    end: Exception | None = None
    try:
        async with aclosing(items):
            async for tagged in items:
                await queue.put(tagged)
    except Exception as error:  # noqa: BLE001 - raised by the reader of the queue
        end = error
    await queue.put(end)


def finished_together(ends: Sequence[Finished], num_prompts: int = 1) -> Finished:
    """Join the ends of all choices: add tokens and measurements, count each prompt once.

    Args:
        ends: of all choices, in their order: as many for each prompt.
        num_prompts: of the request.
    """
    if len(ends) == 1:
        return ends[0]
    first_ends = ends[:: len(ends) // num_prompts]
    return Finished(
        finish_reason=ends[0].finish_reason,
        num_prompt_tokens=sum(end.num_prompt_tokens for end in first_ends),
        num_completion_tokens=sum(end.num_completion_tokens for end in ends),
        num_cached_tokens=sum(end.num_cached_tokens for end in first_ends),
        speculation=sum((end.speculation for end in ends), SpeculationStats()),
        loosened=ends[0].loosened,  # they share a grammar
        has_grammar=ends[0].has_grammar,
        replicas={
            part: ",".join(sorted({end.replicas[part] for end in ends if part in end.replicas}))
            for part in sorted({part for end in ends for part in end.replicas})
        },
    )
