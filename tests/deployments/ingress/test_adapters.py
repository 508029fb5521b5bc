"""Adapters over HTTP: a request whose model is one of them, and answers that name it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from deployments.api.http import create_app
from deployments.local.pair import LoadedPair, local_config
from tests.cases.models.lora import write_adapter, write_merged
from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.http_clients import client_of, client_over
from tests.harness.local import DEMO

CHAT = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 24, "seed": 3}
TARGET = {"model_path": "models/demo/target", "engine": "vllm"}


async def test_routes_take_adapters_by_name() -> None:
    generator = ScriptedGenerator()
    async with client_of(generator, model=served_model(adapters=("a", "b"))) as client:
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("tiny", None),
            ("a", "tiny"),
            ("b", "tiny"),
        ]
        assert (await client.get("/v1/models/b")).json() == cards[2]
        for name in ("tiny", "a"):
            for route, body in (
                ("chat/completions", CHAT),
                ("completions", {"prompt": "The bear"}),
                ("responses", {"input": "The bear"}),
            ):
                answer = await client.post(f"/v1/{route}", json={**body, "model": name})
                assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
            told = await client.post("/tokenize", json={"prompt": "The", "model": name})
            assert told.status_code == 200
        refused = await client.post("/v1/chat/completions", json={**CHAT, "model": "c"})
    assert [request.adapter for request in generator.requests] == ["", "", "", "a", "a", "a"]
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (404, "model")
    assert 'this server has "tiny", "a", "b"' in error["message"]


def test_a_check_names_the_adapter_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"target\.lora_modules\.a: no such folder: 'nowhere'"):
        local_config({"target": TARGET | {"lora_modules": {"a": "nowhere"}}})


async def texts(tree: dict[str, Any], asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Answers of a service in this process, by what is asked."""
    tree["router"] = {"model_name": "demo"}
    engines = LoadedPair(local_config(tree)).engines()
    app = create_app(engines.service().http)
    found = {}
    try:
        async with client_over(app) as client:
            for key, body in asked.items():
                answer = await client.post("/v1/chat/completions", json=CHAT | body, timeout=120)
                assert answer.status_code == 200, answer.text
                found[key] = answer.json()["choices"][0]["message"]["content"]
    finally:
        await engines.close()
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed: configs/vllm-cpu.txt",
)
async def test_answers_are_those_of_a_service_of_the_merged_weights(tmp_path: Path) -> None:
    sizes = {"dtype": "float32", "max_model_len": 256, "kv_cache_tokens": 2048}
    draft = {"model_path": str(DEMO / "draft")} | sizes
    adapter = write_adapter(tmp_path / "a", DEMO / "target", 1)
    merged = tmp_path / "merged"
    shutil.copytree(DEMO / "target", merged)
    write_merged(merged, DEMO / "target", adapter)
    greedy: dict[str, Any] = {"temperature": 0, "model": "demo"}
    plain = {"speculation": {"enabled": False}}
    asked: dict[str, dict[str, Any]] = {"greedy": greedy, "seeded": {"model": "demo"}}
    own = await texts({"target": {"model_path": str(merged)} | sizes, "draft": draft}, asked)
    target = TARGET | sizes | {"lora_modules": {"a": str(adapter)}}
    found = await texts(
        {"target": target, "draft": draft},
        {
            "base": greedy,
            "greedy": greedy | {"model": "a"},
            "seeded": {"model": "a"},
            "plain": greedy | plain | {"model": "a"},
            "base again": greedy,
        },
    )
    assert {key: found[key] for key in own} == own
    assert found["plain"] == own["greedy"] != found["base"] == found["base again"]
