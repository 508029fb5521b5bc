"""Heads by name through routes and real engines: drafts of k tokens, the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from router.limits import SpeculationLimits
from tests.cases.models.eagle3 import early, write_eagle3
from tests.harness.local import DEMO, demo_grammar_host, demo_http

CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Write a short story about a dog and a ball."}],
    "max_tokens": 48,
    "ignore_eos": True,  # a draft ends before an end of text
    "seed": 7,
}
KINDS = {"mtp": "mtp", "medusa": "heads"}  # and the folder of each in the demo
SUFFIX_TOO = SpeculationLimits()


async def chat(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
    return response.json()


def content_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def lengths_of(answer: dict[str, Any]) -> list[int]:
    """Tokens drafted in each round behind the first, which reads the prompt."""
    rounds = answer["speculation_details"][0]["rounds"]
    assert rounds[0]["drafted"] == []
    found = []
    for each in rounds[1:]:
        (drafted,) = each["drafted"]
        assert drafted["drafter"] == "heads"
        found.append(drafted["num_tokens"])
    return found


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_draft_has_k_tokens(kind: str, temperature: float) -> None:
    heads = DEMO / KINDS[kind]
    async with demo_http(draft=None, speculation=SUFFIX_TOO, heads=heads) as client:
        plain = await chat(client, temperature=temperature, speculation={"enabled": False})
        for k in (1, 2, 4):
            speculation = {"drafter": kind, "k": k, "details": True}
            answer = await chat(client, temperature=temperature, speculation=speculation)
            assert content_of(answer) == content_of(plain)
            lengths = lengths_of(answer)
            assert set(lengths) == {k}
            stats = answer["metrics"]["speculative_decoding"]
            assert stats["num_draft_tokens_by"] == {"heads": sum(lengths)}
            assert stats["num_spec_steps"] == len(lengths)
            assert stats["num_accepted_draft_tokens"] > 0
            rounds = answer["speculation_details"][0]["rounds"]
            assert rounds[0]["why"]["reason"] == "the target drafts"
        none = await chat(client, speculation={"drafter": kind, "k": 0}, temperature=temperature)
        off = {"drafter": kind, "k": 2, "enabled": False}
        for answer in (none, await chat(client, speculation=off, temperature=temperature)):
            assert content_of(answer) == content_of(plain)
            assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


@pytest.mark.parametrize("temperature", [0, 1])
async def test_an_eagle3_head_drafts_too(temperature: float, tmp_path: Path) -> None:
    """In the target's own type, on its compiled kernels; masks of a grammar are kept."""
    target = DEMO / "target"
    layers = {"eagle_aux_hidden_state_layer_ids": [2, 4, 7]}
    write_eagle3(tmp_path, target, early(target), "original", **layers)
    options = {"grammar_host": demo_grammar_host(), "heads": tmp_path}
    async with demo_http(draft=None, speculation=SUFFIX_TOO, **options) as client:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        outputs = {"structured_outputs": {"json": schema}, "ignore_eos": False}
        for terms in ({}, outputs):
            asked = CHAT | {"temperature": temperature} | terms
            plain = await chat(client, **asked, speculation={"enabled": False})
            for k in (1, 3):
                speculation = {"drafter": "eagle3", "k": k}
                answer = await chat(client, **asked, speculation=speculation)
                assert content_of(answer) == content_of(plain)
                stats = answer["metrics"]["speculative_decoding"]
                assert stats["num_draft_tokens_by"]["heads"] > 0
                assert terms or stats["num_accepted_draft_tokens"] > 0


async def test_a_named_kind_drafts_alone_as_far_as_pays() -> None:
    async with demo_http(draft=None, speculation=SUFFIX_TOO, heads=DEMO / "mtp") as client:
        for name in ("mtp", "heads"):
            answer = await chat(client, temperature=0, speculation={"drafter": name})
            stats = answer["metrics"]["speculative_decoding"]
            assert set(stats["num_draft_tokens_by"]) == {"heads"}


async def test_what_is_not_served_is_refused() -> None:
    async with demo_http(draft=None, speculation=SUFFIX_TOO, heads=DEMO / "heads") as client:
        for speculation, message, param in (
            (
                {"drafter": "mtp"},
                "speculation.drafter: must be one of suffix, ngram, medusa, heads here, got 'mtp'",
                "speculation.drafter",
            ),
            (
                {"drafter": "medusa", "k": 6},
                "speculation.k: at most 4 with drafter medusa: there are so many heads here "
                "(got 6)",
                "speculation.k",
            ),
        ):
            body = CHAT | {"speculation": speculation}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 400
            error = response.json()["error"]
            assert (error["message"], error["param"]) == (message, param)
        page = (await client.get("/openapi.json")).json()
        drafter = page["components"]["schemas"]["SpeculationOptions"]["properties"]["drafter"]
        assert "heads, mtp, medusa, eagle3, early_exit" in str(drafter)
