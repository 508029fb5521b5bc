"""A request that was with too many lost replicas is refused for some minutes, no other is."""

from __future__ import annotations

import pytest

from deployments.api.schemas.requests import answer_error
from deployments.ingress.quarantine import QUARANTINE_S, Quarantine
from models.protocol.errors import ReplicasLost, Unavailable
from models.protocol.messages import Grammar, Sampling
from router.types import GenerationRequest
from tests.deployments.api.asking import post
from tests.fakes.http import TEXT, ScriptedGenerator
from tests.fakes.sessions import asked


def asking(*prompt_ids: int, seed: int = 0, grammar: str = "") -> GenerationRequest:
    return asked(
        prompt_ids=prompt_ids,
        sampling=Sampling(seed=seed),
        max_tokens=5 + seed,
        grammar=Grammar(kind="regex", text=grammar) if grammar else None,
    )


def test_the_same_request_is_refused_until_its_time_is_over() -> None:
    now_s = 100.0
    quarantine = Quarantine(lambda: now_s)
    quarantine.sink(asking(1, 2, 3)).failed(0, ReplicasLost.code)
    now_s += QUARANTINE_S / 2
    with pytest.raises(ReplicasLost, match="refuses it for another 90 s") as refused:
        quarantine.sink(asking(1, 2, 3, seed=7))
    answer = answer_error(refused.value, "r")
    assert (answer.status, answer.body.error.code) == (503, "quarantined")
    assert answer.headers["retry-after"] == "90"
    for other in (asking(1, 2), asking(1, 2, 3, grammar="a+")):
        quarantine.sink(other)
    now_s += QUARANTINE_S / 2
    quarantine.sink(asking(1, 2, 3))


@pytest.mark.parametrize("code", [Unavailable.code, "client_gone", "quarantined"])
def test_a_request_that_ended_otherwise_is_not_refused(code: str) -> None:
    quarantine = Quarantine()
    quarantine.sink(asking(1)).failed(0, code)
    quarantine.sink(asking(1))


async def test_it_is_refused_over_http_and_reaches_no_target() -> None:
    generator, quarantine = ScriptedGenerator(error=ReplicasLost("lost 3 times")), Quarantine()
    answers = [
        await post(
            "/v1/completions", TEXT, generator, sinks_of=lambda _, one: [quarantine.sink(one)]
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert [a.json()["error"]["code"] for a in answers] == [ReplicasLost.code, "quarantined"]
    assert len(generator.requests) == 1
