"""From config to service, and its routes over real engines in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from deployments.api.http import create_app
from deployments.config.schema import RouterConfig, SpeculationConfig
from deployments.ingress.service import RouterService, served_model
from deployments.local.pair import LoadedPair, local_config
from deployments.local.pool import LocalEnginePool
from router.limits import SessionLimits
from tests.harness.http_clients import client_over, events_of
from tests.harness.local import DEMO, demo_tokenizer
from tests.harness.waiting import wait_until

MAX_MODEL_LEN = 256


def config(**fields: Any) -> RouterConfig:
    return RouterConfig(
        model_name="demo",
        tokenizer_path=str(DEMO / "target"),
        max_model_len=MAX_MODEL_LEN,
        **fields,
    )


@cache
def demo_pair() -> LoadedPair:
    model = {"dtype": "bfloat16", "max_model_len": MAX_MODEL_LEN, "kv_cache_tokens": 2048}
    parts = {name: model | {"model_path": str(DEMO / name)} for name in ("target", "draft")}
    return LoadedPair(local_config(parts))


@asynccontextmanager
async def serving(
    router_config: RouterConfig,
) -> AsyncIterator[tuple[httpx.AsyncClient, LocalEnginePool, RouterService]]:
    engines = demo_pair().engines(has_threads=True)
    service = engines.service(router_config)
    try:
        async with client_over(create_app(service.http)) as client:
            yield client, engines.threads()["target"], service
    finally:
        await engines.close()


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Write a short story about a dog."}]
    return {"model": "demo", "messages": messages, "max_tokens": 24, "seed": 4} | fields


def text_of(stream: str) -> str:
    *chunks, end = events_of(stream)
    assert end == "[DONE]"
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def test_a_seed_gives_one_text_streamed_or_not_whatever_is_drafted():
    async with serving(config()) as (client, _, _):
        texts = set()
        for speculation in ({"enabled": False}, {"k": 0}, {"k": 3}, {}):
            body = chat(speculation=speculation)
            whole = (await client.post("/v1/chat/completions", json=body)).json()
            stream = await client.post("/v1/chat/completions", json=body | {"stream": True})
            texts |= {whole["choices"][0]["message"]["content"], text_of(stream.text)}
            stats = whole["metrics"]["speculative_decoding"]
            # As vLLM has it; AIPerf drops the figures of an answer where it does not hold.
            assert len(stats["acceptance_histogram"]) == stats["num_spec_tokens"] + 1
            if speculation == {"k": 3}:
                assert stats["num_draft_tokens"] > 0
                assert sum(stats["acceptance_histogram"]) == stats["num_spec_steps"]
            elif speculation:
                assert stats["num_draft_tokens"] == 0
        assert len(texts) == 1
        assert texts != {""}


async def test_a_request_may_ask_what_draft_models_would_have_drafted():
    async with serving(config()) as (client, _, _):
        body = chat(speculation={"compare": True, "k": 3}, temperature=0)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        plain = chat(temperature=0)
        other = (await client.post("/v1/chat/completions", json=plain)).json()
        page = (await client.get("/metrics")).text
    said = answer["metrics"]["speculative_decoding"]
    found = said["drafts"]["draft_model"]
    assert found["num_tokens"] == answer["usage"]["completion_tokens"] == 24
    assert 0 < found["num_matched"] <= 24
    assert found["tokens_per_round"] == sorted(found["tokens_per_round"])
    assert 1 <= found["tokens_per_round"][0] <= 2
    assert other["metrics"]["speculative_decoding"]["drafts"] is None
    assert answer["choices"][0]["message"] == other["choices"][0]["message"]
    assert 'outrider:replayed_tokens_total{draft="draft_model"' in page


async def test_health_follows_the_target():
    async with serving(config(timeouts=SessionLimits(queue_wait_s=0.5))) as (client, target, _):
        assert (await client.get("/health")).status_code == 200
        target.fail("target lost")
        await asyncio.sleep(1.05)  # a result is kept for a second
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "unavailable"


def test_limits_of_answers_come_from_the_config():
    speculation = SpeculationConfig(verification="rejection")
    limited = config(speculation=speculation, max_choices=11, max_logprob_entries=12)
    model = served_model(limited, demo_tokenizer(), created=0)
    assert model.verification == "rejection"
    assert (model.max_choices, model.max_logprob_entries) == (11, 12)


async def test_limits_change_while_it_serves_and_streams_keep_theirs():
    async with serving(config()) as (client, _, service):
        body = chat(speculation={"k": 3}, max_tokens=150, ignore_eos=True)
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        text = whole["choices"][0]["message"]["content"]
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(0.02)
        assert not running.done()
        service.set_limits(
            config(
                default_max_tokens=3,
                max_tokens_limit=10,
                body_limit_bytes=2000,
                speculation=SpeculationConfig(enabled=False, max_num_speculative_tokens=2),
            )
        )
        assert (await running).json()["choices"][0]["message"]["content"] == text
        assert (await running).json()["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
        refused = await client.post("/v1/chat/completions", json=body)
        assert "max_tokens: at most 10" in refused.json()["error"]["message"]
        refused = await client.post("/v1/chat/completions", json=body | {"max_tokens": 9})
        assert "speculation.k: at most 2" in refused.json()["error"]["message"]
        refused = await client.post("/v1/chat/completions", json=chat(user="x" * 2000))
        assert refused.status_code == 413
        short = (await client.post("/v1/chat/completions", json=chat(max_tokens=None))).json()
        assert short["usage"]["completion_tokens"] == 3
        assert short["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
        assert text.startswith(short["choices"][0]["message"]["content"])


async def test_who_finds_all_places_taken_is_refused_unread_and_counted() -> None:
    body = {"model": "demo", "prompt": "A story", "max_tokens": 200, "ignore_eos": True}
    async with serving(config(max_sessions=1, max_queued_sessions=1)) as (client, _, service):
        asked = [client.post("/v1/completions", json=body, timeout=60) for _ in range(2)]
        running = [asyncio.create_task(one) for one in asked]
        waits = b'num_requests_waiting{model_name="demo"} 1.0'
        await wait_until(lambda: waits in service.metrics.text())
        refused = await client.post("/v1/completions", content=b"no JSON")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert refused.headers["retry-after"].isdecimal()
        assert b'code="overloaded",model_name="demo"} 1.0' in service.metrics.text()
        assert [response.status_code for response in await asyncio.gather(*running)] == [200, 200]
        unread = await client.post("/v1/completions", content=b"no JSON")
        assert unread.status_code == 400


async def test_places_are_kept_for_other_clients_from_the_start_and_while_it_serves(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "".join(f"{name} {sha256(name.encode()).hexdigest()}\n" for name in ("one", "other"))
    )
    terms: dict[str, Any] = {"max_sessions": 4, "api_keys_file": str(keys)}
    body = chat(max_tokens=150, ignore_eos=True)
    async with serving(config(**terms, reserved_sessions=2)) as (client, _, service):

        def ask(name: str, number: int) -> list[asyncio.Task[httpx.Response]]:
            headers = {"authorization": f"Bearer {name}"}
            path = "/v1/chat/completions"
            asked = (client.post(path, json=body, headers=headers) for _ in range(number))
            return [asyncio.create_task(one) for one in asked]

        async def until(num_running: int, num_waiting: int) -> None:
            labels = '{model_name="demo"}'
            wanted = (f"running{labels} {num_running}.0", f"waiting{labels} {num_waiting}.0")
            await wait_until(lambda: all(one in service.metrics.text().decode() for one in wanted))

        running = ask("one", 5)
        await until(2, 3)
        running += ask("other", 1)
        await until(3, 3)
        service.set_limits(config(**terms, reserved_sessions=0))
        await until(4, 2)
        assert {answer.status_code for answer in await asyncio.gather(*running)} == {200}


async def test_the_metrics_page_counts_the_rounds_that_the_planner_planned():
    async with serving(config()) as (client, _, _):
        answer = (await client.post("/v1/chat/completions", json=chat())).json()
        page = (await client.get("/metrics")).text
    num_rounds = sum(
        float(line.rsplit(" ", maxsplit=1)[1])
        for line in page.splitlines()
        if line.startswith("outrider:planned_rounds_total{")
    )
    assert 0 < num_rounds <= answer["usage"]["completion_tokens"]
