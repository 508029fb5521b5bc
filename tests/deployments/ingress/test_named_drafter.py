"""A drafter of the registry is known by its name to config, requests, answers and metrics."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deployments.api.http import create_app
from deployments.api.schemas.requests import SpeculationOptions
from deployments.config.schema import AppConfig, RouterConfig, SpeculationConfig
from deployments.ingress.service import RouterService
from models.protocol.errors import InvalidRequest
from router.drafters.choice import choose_drafters
from router.drafters.registry import DRAFTERS
from router.limits import SpeculationLimits
from router.types import SpeculationSettings
from tests.fakes.oracle_drafter import ORACLE
from tests.fakes.pools import ScriptedPool
from tests.harness.http_clients import client_over
from tests.harness.local import DEMO


@pytest.fixture
def with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, ORACLE.name, ORACLE)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    """Which draft models there are is known to the whole config and to the router only."""
    message = "Input should be 'draft_model', 'suffix' or 'ngram'"
    with pytest.raises(ValidationError, match=message):
        SpeculationConfig(method="Oracle")
    with pytest.raises(ValueError, match="must be one of draft_model, suffix, ngram, got 'oracle'"):
        AppConfig.model_validate({"target.model_path": "x", "router.speculation.method": "oracle"})
    for wrong in (3, "Oracle", "x" * 33):
        with pytest.raises(ValidationError, match="string"):
            SpeculationOptions.model_validate({"drafter": wrong})
    with pytest.raises(InvalidRequest, match="must be one of draft_model, suffix, ngram, got"):
        choose_drafters(SpeculationSettings(drafter="oracle"), SpeculationLimits(), ())
    with pytest.raises(ValidationError, match="Input should be 'coupled' or 'rejection'"):
        SpeculationOptions(verification="strict")


@pytest.mark.usefixtures("with_oracle")
def test_a_registered_name_passes_and_is_published() -> None:
    assert SpeculationOptions(drafter="oracle").drafter == "oracle"
    assert SpeculationConfig(method="oracle").method == "oracle"


@pytest.mark.usefixtures("with_oracle")
async def test_a_request_is_drafted_for_by_name() -> None:
    config = RouterConfig(model_name="demo", tokenizer_path=str(DEMO / "target"), max_model_len=64)
    service = RouterService(config, target=ScriptedPool(), drafts={}, constraint=None)

    async def ask(**speculation: Any) -> dict[str, Any]:
        body = {
            "model": "demo",
            "prompt": [5, 9, 2],
            "max_tokens": 30,
            "ignore_eos": True,
            "speculation": speculation,
        }
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole

    async with client_over(create_app(service.http)) as client:
        plain = await ask(enabled=False)
        drafted = await ask(drafter="oracle", k=3)
        page = (await client.get("/metrics")).text
        described = (await client.get("/openapi.json")).json()["components"]["schemas"]
    [names, _] = described["SpeculationOptions"]["properties"]["drafter"]["anyOf"]
    assert names["enum"] == ["suffix", "ngram", "oracle"], "no draft model is served here"
    assert drafted["choices"][0]["text"] == plain["choices"][0]["text"]
    counts = drafted["metrics"]["speculative_decoding"]
    assert counts["num_draft_tokens_by"] == {"oracle": counts["num_draft_tokens"]}
    assert counts["num_accepted_draft_tokens"] > 0
    drafted_by = [line for line in page.splitlines() if "outrider:draft_tokens_total{" in line]
    assert len(drafted_by) == 1
    assert 'source="oracle"' in drafted_by[0]
