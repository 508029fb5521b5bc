"""Part `cancel`: requests that are cancelled at any moment, some twice, leave nothing behind."""

from __future__ import annotations

import asyncio
import random

from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.answers import Answer
from loadtest.fuzz.engines.crowd import crowd
from loadtest.fuzz.engines.pair import fuzz_tokenizer, with_grammars
from loadtest.fuzz.engines.requests import random_requests
from loadtest.fuzz.links.lossy import FaultRates, Faults
from models.grammar.host import GrammarHost
from models.protocol.errors import ServingError
from router.generator import SpeculativeGenerator
from router.types import GenerationRequest

_NUM_REQUESTS = 10
_LONGEST_S = 0.5  # a case of this size takes about as long


async def _case(seed: int, host: GrammarHost) -> Outcome:
    rng = random.Random(seed)
    requests = random_requests(rng, _NUM_REQUESTS)
    rates = FaultRates.drawn(rng) if rng.random() < 0.5 else FaultRates()
    ends = [_End(random.Random(f"{seed}/{i}")) for i in range(len(requests))]
    async with crowd(rng, requests, host, Faults(seed, rates)) as service:
        pairs = zip(ends, requests, strict=True)
        await asyncio.gather(*(end.run(service.generator, request) for end, request in pairs))
    outcome = service.outcome
    outcome.counts["cases"] += 1
    outcome.counts["requests"] += len(requests)
    for end in ends:
        outcome.counts[end.how] += 1
    return outcome


open_cancel = with_grammars(_case)


class _End:
    """The end of one request: by itself, closed by its reader, or cancelled from outside."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.how = rng.choice(("finished", "closed", "cancelled", "cancelled", "cancelled twice"))

    async def run(self, generator: SpeculativeGenerator, request: GenerationRequest) -> None:
        num_events = self._rng.randint(0, 12) if self.how == "closed" else -1
        task = asyncio.create_task(_read(generator, request, num_events), name="fuzz-reader")
        if self.how.startswith("cancelled"):
            await asyncio.sleep(self._rng.uniform(0, _LONGEST_S))
            task.cancel()
            if self.how == "cancelled twice":
                for _ in range(self._rng.randint(0, 6)):
                    await asyncio.sleep(0)
                task.cancel()
        try:
            await task
        except (asyncio.CancelledError, ServingError) as error:
            if isinstance(error, ServingError):
                self.how = "failed"
        else:
            if self.how.startswith("cancelled"):
                self.how = "finished"  # before that


async def _read(
    generator: SpeculativeGenerator, request: GenerationRequest, num_events: int
) -> Answer:
    """Read `num_events` events, then close; all of them where that is negative."""
    answer = Answer()
    detokenizer = fuzz_tokenizer().detokenizer(())
    events = generator.generate(request, detokenizer)
    try:
        async for event in events:
            if num_events == 0:
                break
            num_events -= 1
            answer.take(event)
    finally:
        await events.aclose()
    return answer
