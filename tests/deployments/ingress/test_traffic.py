"""The log's line of a minute: what it adds up, and when there is none."""

from __future__ import annotations

import logging

import pytest

from deployments.api.observer import ChoiceObserver
from deployments.ingress.traffic import TrafficLine
from models.protocol.errors import Overloaded
from router.types import Delta, Finished
from tests.deployments.ingress.test_service import config, serving
from tests.fakes.http import STATS

END = Finished(
    finish_reason="stop", num_prompt_tokens=4, num_completion_tokens=5, speculation=STATS
)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


async def test_a_router_s_requests_are_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deployments.ingress.traffic")
    async with serving(config()) as (client, _, service):
        body = {"model": "demo", "prompt": "The cat", "max_tokens": 20, "speculation": {"k": 3}}
        answer = (await client.post("/v1/completions", json=body | {"ignore_eos": True})).json()
        service.traffic.log()
    [record] = [one for one in caplog.records if one.name == "deployments.ingress.traffic"]
    stats = answer["metrics"]["speculative_decoding"]
    assert record.__dict__["requests"] == 1
    assert record.__dict__["tokens_per_s"] > 0
    assert record.__dict__["acceptance_rate"] == round(stats["draft_acceptance_rate"], 3)


def test_a_minute_is_one_line_and_a_quiet_one_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deployments.ingress.traffic")
    load, now_s = (0, 0), 0.0
    traffic = TrafficLine(lambda: load, clock=lambda: now_s)
    traffic.log()
    assert lines(caplog) == []
    observer = ChoiceObserver(0, (traffic,), clock=lambda: 1.0)
    with observer:
        for item in (Delta("a", (1, 2, 3)), Delta("b", (4, 5)), END):
            observer.add(item)
    with pytest.raises(Overloaded), ChoiceObserver(1, (traffic,)):
        raise Overloaded("full")
    traffic.refused("overloaded")
    load, now_s = (8, 3), 50.0
    traffic.log()
    [record] = caplog.records
    assert record.__dict__["tokens_per_s"] == 0.1
    assert record.__dict__["failures"] == {"overloaded": 2}
    assert lines(caplog) == [
        "traffic of 50 s: 1 requests done (2 overloaded), 0.1 tokens/s, first token after 0.0 s, "
        "k 2.0, accepted 0.6; 8 running, 3 waiting"
    ]
    load, now_s = (1, 0), 110.0  # a stream that waits for its first token
    traffic.log()
    assert lines(caplog) == [
        "traffic of 60 s: 0 requests done, 0.0 tokens/s, first token after - s, k -, accepted -; "
        "1 running, 0 waiting"
    ]
    load = (0, 0)
    traffic.log()
    assert lines(caplog) == []
