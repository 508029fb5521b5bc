"""Part `engines`: a request gets the same text alone and undrafted, crowded and drafted.

Each case draws some seven requests. It runs each alone through a target of its own without drafts,
prefix cache or want of room. Then all run together on engines with few KV blocks, drafted as each
asks. The answers must be equal to the last bit under `coupled`. The text depends on the draft under
`rejection` (README). So there it must be one that the target could have drawn, and keep the
request's own terms. The text without drafts is `coupled`'s.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter

import msgspec

from deployments.config.schema import RouterConfig, SpeculationConfig
from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.answers import Answer, answer_of, broken_terms, difference
from loadtest.fuzz.engines.pair import MAX_MODEL_LEN, with_grammars
from loadtest.fuzz.engines.requests import random_requests, undrafted
from loadtest.fuzz.engines.support import undrawable
from loadtest.fuzz.engines.world import (
    MAX_K,
    blocks_needed,
    crowded_engines,
    held,
    leases_left,
    left_tasks,
    reference_engines,
)
from models.grammar.host import GrammarHost
from models.protocol.rules import COUPLED, RULES
from router.drafters.draft_model import POOL
from router.limits import SessionLimits
from router.types import GenerationRequest

NUM_REQUESTS = 7
# Nothing is lost here: whoever misses an engine has found a dead one, and need not look for long.
_LIMITS = SessionLimits(draft_ms=20_000, failover_s=2.0, queue_wait_s=5.0, max_losses=2)


async def _case(seed: int, host: GrammarHost) -> Outcome:
    rng = random.Random(seed)
    requests = random_requests(rng, NUM_REQUESTS)
    expected = await answers_alone(requests, host)
    requests = [_maybe_resumed(rng, *pair) for pair in zip(requests, expected, strict=True)]
    outcome = await _crowded(rng, requests, expected, host)
    outcome.counts["cases"] += 1
    return outcome


open_engines = with_grammars(_case)


async def answers_alone(requests: list[GenerationRequest], host: GrammarHost) -> list[Answer]:
    """Return each request's answer from a target of its own, one after the other, without drafts.

    `rejection` without drafts is requested as `coupled`, because they give the same text.
    """
    engines = reference_engines(host)
    generator = engines.router(_router(SpeculationConfig(enabled=False)))
    answers = []
    for request in requests:
        sampling = msgspec.structs.replace(request.sampling, verification=COUPLED.name)
        alone = dataclasses.replace(undrafted(request), sampling=sampling)
        answers.append(await answer_of(generator, alone))
    await engines.close()
    return answers


def _router(speculation: SpeculationConfig) -> RouterConfig:
    return RouterConfig(max_model_len=MAX_MODEL_LEN, speculation=speculation, timeouts=_LIMITS)


def _maybe_resumed(
    rng: random.Random, request: GenerationRequest, alone: Answer
) -> GenerationRequest:
    """Return the request, one of four with the beginning of its answer, as of a broken stream."""
    num_known = rng.choice((0, 0, 0, rng.randint(0, len(alone.ids))))
    return dataclasses.replace(request, known_ids=alone.ids[:num_known])


async def _crowded(
    rng: random.Random,
    requests: list[GenerationRequest],
    expected: list[Answer],
    host: GrammarHost,
) -> Outcome:
    before = asyncio.all_tasks()
    least = max(blocks_needed(request) for request in requests)
    engines = crowded_engines(
        host,
        target_blocks=least + rng.randint(0, 16),
        draft_blocks=least + rng.randint(-4, 24),
    )
    speculation = SpeculationConfig(
        max_num_speculative_tokens=MAX_K,
        run_on_tokens=rng.choice((0, 1, 4, 32)),
        prompt_lookup_max=rng.choice((1, 2, 4)),
        max_num_free_tokens=rng.choice((0, 3, 16)),
    )
    generator = engines.router(_router(speculation))
    places = asyncio.Semaphore(NUM_REQUESTS)

    async def one(request: GenerationRequest, num_turns: int) -> Answer:
        async with places:
            for _ in range(num_turns):
                await asyncio.sleep(0)
            return await answer_of(generator, request)

    turns = [rng.choice((0, 0, 30, 200)) for _ in requests]
    answers = await asyncio.gather(*map(one, requests, turns))
    outcome = Outcome(complaints=leases_left(engines))
    await engines.close()
    outcome.complaints += held(engines, host) + await left_tasks(before)
    loads = engines.loads()
    outcome.counts["preemptions"] += loads["target"].num_preemptions
    outcome.counts["draft preemptions"] += loads[POOL].num_preemptions
    outcome.counts["prefix hits"] += loads["target"].prefix_hits
    for request, alone, answer in zip(requests, expected, answers, strict=True):
        outcome.add(judged(request, alone, answer, host))
    return outcome


def judged(request: GenerationRequest, alone: Answer, answer: Answer, host: GrammarHost) -> Outcome:
    """Compare an answer with the one that the same request got alone and undrafted."""
    outcome = Outcome(Counter(_counts(request, answer)))
    outcome.complaints += broken_terms(request, answer)
    rule = RULES[request.sampling.verification]
    is_free = rule.depends_on_draft and request.sampling.temperature > 0
    if is_free and answer.num_drafted and alone.error is None:
        outcome.counts["held to their support"] += 1
        if answer.error is not None:
            outcome.complaints.append(f"{request.request_id}: {answer.error!r}, alone it was none")
        else:
            outcome.complaints += undrawable(request, answer.ids, host)
    else:
        outcome.counts["compared"] += 1
        outcome.complaints += difference(request.request_id, alone, answer)
    return outcome


def _counts(request: GenerationRequest, answer: Answer) -> dict[str, int]:
    counts = {
        "requests": 1,
        "tokens": len(answer.ids),
        "drafted": answer.num_drafted,
        "accepted": answer.num_accepted,
        f"finish {answer.finish_reason or type(answer.error).__name__}": 1,
    }
    if request.choices:
        counts["choices"] = 1
    if request.known_ids:
        counts["resumed"] = 1
    if request.grammar is not None:
        counts[f"grammar {request.grammar.kind}"] = 1
        counts["grammars finished"] = int(answer.ids[-1:] == request.eos_ids[:1])
    return counts
