"""A drafter of the registry is known by its name to config, requests, answers and metrics."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from deployments.api.http import create_app
from deployments.api.schemas.requests import SpeculationOptions
from deployments.config.schema import RouterConfig, SpeculationConfig
from deployments.ingress.service import RouterService
from router.drafters.registry import DRAFTERS
from tests.fakes.oracle_drafter import ORACLE
from tests.fakes.router import ScriptedPool
from tests.harness.local import DEMO


@pytest.fixture
def with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, ORACLE.name, ORACLE)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    message = "Input should be 'draft_model', 'suffix' or 'ngram'"
    with pytest.raises(ValidationError, match=message):
        SpeculationOptions(drafter="oracle")
    with pytest.raises(ValidationError, match=message):
        SpeculationConfig(method="oracle")
    with pytest.raises(ValidationError, match=message):
        SpeculationOptions.model_validate({"drafter": 3})
    with pytest.raises(ValidationError, match="Input should be 'coupled' or 'rejection'"):
        SpeculationOptions(verification="strict")


@pytest.mark.usefixtures("with_oracle")
def test_a_registered_name_passes_and_is_published() -> None:
    assert SpeculationOptions(drafter="oracle").drafter == "oracle"
    assert SpeculationConfig(method="oracle").method == "oracle"
    [names, _] = SpeculationOptions.model_json_schema()["properties"]["drafter"]["anyOf"]
    assert names == {"type": "string", "enum": ["draft_model", "suffix", "ngram", "oracle"]}


@pytest.mark.usefixtures("with_oracle")
async def test_a_request_is_drafted_for_by_name() -> None:
    config = RouterConfig(model_name="demo", tokenizer_path=str(DEMO / "target"), max_model_len=64)
    service = RouterService(config, target=ScriptedPool(), draft=None, constraint=None)
    transport = httpx.ASGITransport(create_app(service.http))

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

    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        plain = await ask(enabled=False)
        drafted = await ask(drafter="oracle", k=3)
        page = (await client.get("/metrics")).text
    assert drafted["choices"][0]["text"] == plain["choices"][0]["text"]
    counts = drafted["metrics"]["speculative_decoding"]
    assert counts["num_draft_tokens_by"] == {"oracle": counts["num_draft_tokens"]}
    assert counts["num_accepted_draft_tokens"] > 0
    [line] = [line for line in page.splitlines() if 'source="oracle"' in line and "_total" in line]
    assert line.startswith("outrider:draft_tokens_total{")
