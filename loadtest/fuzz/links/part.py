"""Part `links`: links that lose, double, delay and break change no text and leave nothing."""

from __future__ import annotations

import asyncio
import random

from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.answers import Answer, answer_of, is_prefix
from loadtest.fuzz.engines.crowd import crowd
from loadtest.fuzz.engines.pair import with_grammars
from loadtest.fuzz.engines.part import answers_alone, judged
from loadtest.fuzz.engines.requests import random_requests
from loadtest.fuzz.links.lossy import FaultRates, Faults
from models.grammar.host import GrammarHost
from models.protocol.errors import Unavailable
from models.protocol.rules import RULES
from router.types import GenerationRequest

_NUM_REQUESTS = 5


async def _case(seed: int, host: GrammarHost) -> Outcome:
    rng = random.Random(seed)
    requests = random_requests(rng, _NUM_REQUESTS)
    faults = Faults(seed, FaultRates.drawn(rng))
    expected = await answers_alone(requests, host)
    async with crowd(rng, requests, host, faults) as service:
        answers = await asyncio.gather(
            *(answer_of(service.generator, request) for request in requests)
        )
    outcome = service.outcome
    outcome.counts["cases"] += 1
    for request, alone, answer in zip(requests, expected, answers, strict=True):
        outcome.add(_judged(request, alone, answer, host))
    return outcome


open_links = with_grammars(_case)


def _judged(
    request: GenerationRequest, alone: Answer, answer: Answer, host: GrammarHost
) -> Outcome:
    """Judge the answer; a request that ended by faults must at least have begun right."""
    if not isinstance(answer.error, Unavailable):
        return judged(request, alone, answer, host)
    outcome = Outcome()
    outcome.counts["given up"] += 1
    rule = RULES[request.sampling.verification]
    is_free = rule.depends_on_draft and request.sampling.temperature > 0
    if not is_free and not is_prefix(alone, answer):
        outcome.complaints.append(f"{request.request_id}: {answer.text!r} is not how it begins")
    return outcome
