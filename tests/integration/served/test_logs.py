"""The demo with JSON logs, keys and tight limits: what its log files say, and what not."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.report.machine import ROOT
from loadtest.service.served import Config, Served, served

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "sk-heron-at-noon-0123456789"
WRONG_KEY = "sk-wrong-owl-at-midnight"
SECRET = "Zanzibar-heron-lamp"  # a prompt's word that nothing else has
LIMIT_BYTES = 20_000
PREFIX = "/llm"  # keys are asked for under one as well
NUM_SESSIONS, NUM_QUEUED = 2, 1
WAIT_S = 60.0


def chat(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{SECRET}. {text}"}]
    return {"model": "outrider-demo", "messages": messages, **fields}


STORY = chat("Write a short story about a dog and a ball.", seed=1, max_tokens=60)


@dataclass
class Answered:
    """A service that has answered, and what it answered."""

    service: Served
    answers: dict[str, httpx.Response]


def limits(key_file: Path) -> Any:
    def change(config: Config) -> None:
        config["logging_config"]["encoding"] = "JSON"
        router = config["applications"][0]["args"]["router"]
        router["api_keys_file"] = str(key_file)
        router["body_limit_bytes"] = LIMIT_BYTES
        router["max_sessions"] = NUM_SESSIONS
        router["max_queued_sessions"] = NUM_QUEUED
        config["applications"][0]["route_prefix"] = PREFIX

    return change


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answered]:
    key_file = tmp_path_factory.mktemp("keys") / "keys"
    key_file.write_text(f"alice {hashlib.sha256(KEY.encode()).hexdigest()}\n")
    with served(ROOT / "configs" / "demo.yaml", change=limits(key_file)) as service:
        answers = asyncio.run(ask_all(service))
        service.stop()
        yield Answered(service, answers)


async def ask_all(service: Served) -> dict[str, httpx.Response]:
    async with httpx.AsyncClient(base_url=service.base_url, timeout=WAIT_S) as client:

        async def ask(name: str, body: Any, key: str = KEY) -> httpx.Response:
            headers = {"x-request-id": name, "authorization": f"Bearer {key}"}
            return await client.post("/v1/chat/completions", json=body, headers=headers)

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        asked = {
            "finished": STORY,
            "streamed": STORY | {"stream": True},
            "constrained": chat("A number.", max_tokens=40)
            | {"structured_outputs": {"json": schema}},
            "bad-value": STORY | {"temperature": SECRET},
            "bad-field": STORY | {SECRET: 1},
            "too-long": chat("story " * 1500),
            "too-large": chat("x" * LIMIT_BYTES),
            "too-few": STORY | {"max_tokens": -5},
        }
        answers = {name: await ask(name, body) for name, body in asked.items()}
        answers["no-key"] = await ask("no-key", STORY, WRONG_KEY)
        answers["any-path"] = await client.get("/any", headers={"x-request-id": "any-path"})
        headers = {"x-request-id": "page", "authorization": f"Bearer {KEY}"}
        page = await client.get("/openapi.json", headers=headers)
        assert page.json()["servers"] == [{"url": PREFIX}]
        crowd = [f"crowd-{index}" for index in range(8)]
        long = STORY | {"max_tokens": 500, "ignore_eos": True}  # all are there before one is over
        together = await asyncio.gather(*(ask(name, long) for name in crowd))
        answers |= dict(zip(crowd, together, strict=True))
        headers = {"x-request-id": "left", "authorization": f"Bearer {KEY}"}
        streamed = STORY | {"stream": True, "max_tokens": 900, "ignore_eos": True}
        async with client.stream(
            "POST", "/v1/chat/completions", json=streamed, headers=headers
        ) as stream:
            async for _ in stream.aiter_lines():
                break
        await until_logged(service, "left")
        return answers


async def until_logged(service: Served, request_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while request_id not in requests_of(service):  # noqa: ASYNC110  # a file of others
            await asyncio.sleep(0.2)


def log_files(service: Served) -> list[Path]:
    found = [path for path in service.folder.rglob("*") if path.is_file() and "/logs/" in str(path)]
    assert any("/serve/replica_" in str(path) for path in found)
    return [*found, service.log_path]


def lines_of(service: Served, pattern: str) -> list[dict[str, Any]]:
    """Lines of the files `pattern`, every one of which must be JSON."""
    paths = list(service.folder.rglob(f"logs/{pattern}"))
    assert paths
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def requests_of(service: Served) -> dict[str, dict[str, Any]]:
    """The line of each request, by its id; there must not be two."""
    lines = lines_of(service, "serve/replica_outrider_Router_*.log")
    ours = [line for line in lines if line["filename"] == "request_log.py"]
    by_id = {line["request_id"]: line for line in ours}
    assert len(by_id) == len(ours)
    return by_id


def test_every_request_has_a_line_with_its_id(answered: Answered) -> None:
    logged = requests_of(answered.service)
    assert set(answered.answers) | {"left"} == set(logged)
    for name, answer in answered.answers.items():
        assert answer.headers["x-request-id"] == name
        assert logged[name]["status"] == answer.status_code, name
    line, usage = logged["finished"], answered.answers["finished"].json()["usage"]
    assert line["session_ids"] == [answered.answers["finished"].json()["id"]]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert (line["model"], line["client"]) == ("outrider-demo", "alice")
    assert 0 < line["ttft_s"] < line["duration_s"]
    assert 0 <= line["acceptance_rate"] <= 1
    assert 0 <= line["mean_k"] <= 8
    assert (line["deployment"], line["application"]) == ("outrider_Router", "outrider")
    assert logged["left"]["finish_reason"] == "client_gone"
    assert logged["bad-value"]["param"] == "temperature"
    assert logged["no-key"]["client"] is None


@pytest.mark.parametrize(
    "pattern",
    [
        "serve/replica_outrider_Target_*.log",
        "serve/replica_outrider_Draft_*.log",
        "serve/replica_outrider_Constraint_*.log",
    ],
)
def test_engines_and_constraint_service_write_json(answered: Answered, pattern: str) -> None:
    lines = lines_of(answered.service, pattern)
    assert any("ready in" in line["message"] for line in lines)
    assert all(line["levelname"] and line["replica"] for line in lines)


def test_ranks_write_json(answered: Answered) -> None:
    found = [
        json.loads(line)
        for path in answered.service.folder.rglob("logs/worker-*.err")
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith("{")
    ]
    ranks = {line["model_kind"] for line in found if line.get("component") == "rank"}
    assert ranks == {"target", "draft"}


def test_neither_key_nor_text_is_in_any_file(answered: Answered) -> None:
    story = answered.answers["finished"].json()["choices"][0]["message"]["content"]
    forbidden = [KEY, WRONG_KEY, SECRET, story[:24]]
    assert len(story) > 24
    for path in log_files(answered.service):
        text = path.read_text(errors="replace")
        assert not [words for words in forbidden if words in text], path


def test_the_ready_line_has_the_prefix(answered: Answered) -> None:
    [told] = [line for line in answered.service.log().splitlines() if "ready at http" in line]
    assert (
        f"ready at {answered.service.base_url} - try: curl {answered.service.base_url}/v1/" in told
    )
    assert answered.service.base_url.endswith(PREFIX)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("too-large", 413, ["body", str(LIMIT_BYTES)]),
        ("too-long", 400, ["messages", "1024"]),
        ("too-few", 400, ["max_tokens", "0", "-5"]),
        ("bad-value", 400, ["temperature"]),
        ("no-key", 401, ["API key"]),
        ("any-path", 401, ["API key"]),
    ],
)
def test_limits_are_told_by_field_limit_and_value(
    answered: Answered, name: str, status: int, words: list[str]
) -> None:
    answer = answered.answers[name]
    assert answer.status_code == status
    for word in words:
        assert word in answer.json()["error"]["message"]


def test_who_finds_no_place_is_told_when_to_come_again(answered: Answered) -> None:
    crowd = [answer for name, answer in answered.answers.items() if name.startswith("crowd")]
    refused = [answer for answer in crowd if answer.status_code == 429]
    assert {answer.status_code for answer in crowd} == {200, 429}
    assert len(refused) >= len(crowd) - NUM_SESSIONS - NUM_QUEUED - 1
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        message = answer.json()["error"]["message"]
        assert f"{NUM_SESSIONS} sessions are running" in message
