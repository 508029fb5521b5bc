"""What was with too many lost replicas is refused for some minutes, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from deployments.api.schemas.requests import answer_error
from deployments.ingress.quarantine import QUARANTINE_S, QuarantiningGenerator
from models.protocol.errors import ReplicasLost, Unavailable
from models.protocol.messages import Grammar, Sampling
from router.types import Delta, Detokenizer, Finished, GenerationRequest
from tests.fakes.router import LetterDetokenizer


class Dying:
    """Ends every request with an error, where one is set, and counts them."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.error: Exception | None = ReplicasLost("target lost 3 times")

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        self.num_asked += 1
        yield Delta("a", (1,))
        if self.error is not None:
            raise self.error


def asking(*prompt_ids: int, seed: int = 0, grammar: str = "") -> GenerationRequest:
    return GenerationRequest(
        request_id="s",
        prompt_ids=prompt_ids,
        sampling=Sampling(seed=seed),
        eos_ids=(0,),
        max_tokens=5 + seed,
        grammar=Grammar(kind="regex", text=grammar) if grammar else None,
    )


async def ask(generator: QuarantiningGenerator, request: GenerationRequest) -> int:
    return len([item async for item in generator.generate(request, LetterDetokenizer())])


async def test_the_same_request_is_refused_until_its_time_is_over() -> None:
    dying, now_s = Dying(), 100.0
    generator = QuarantiningGenerator(dying, lambda: now_s)
    with pytest.raises(ReplicasLost, match="target lost 3 times"):
        await ask(generator, asking(1, 2, 3))
    dying.error = None
    now_s += QUARANTINE_S / 2
    with pytest.raises(ReplicasLost, match="refuses it for another 90 s") as refused:
        await ask(generator, asking(1, 2, 3, seed=7))
    assert dying.num_asked == 1, "a refused request reaches no target"
    answer = answer_error(refused.value, "r")
    assert (answer.status, answer.body.error.code) == (503, "quarantined")
    assert answer.headers["retry-after"] == "90"
    for other in (asking(1, 2), asking(1, 2, 3, grammar="a+")):
        assert await ask(generator, other) == 1
    now_s += QUARANTINE_S / 2
    assert await ask(generator, asking(1, 2, 3)) == 1


async def test_a_request_that_only_found_nobody_is_not_refused() -> None:
    dying = Dying()
    generator = QuarantiningGenerator(dying)
    dying.error = Unavailable("no target within the limit of 10 s")
    for _ in range(2):
        with pytest.raises(Unavailable, match="no target"):
            await ask(generator, asking(1))
    assert dying.num_asked == 2
