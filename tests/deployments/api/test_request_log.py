"""One line per request, whatever becomes of it, and nothing of the client's text in it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from logging.handlers import BufferingHandler, MemoryHandler
from typing import Any

import pytest
from ray._common.formatters import JSONFormatter

from deployments.serve.logs import PACKAGES, configure_rank, is_json, join_serve
from models.protocol.errors import ConstraintViolation, Overloaded, Unavailable
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of

SECRET = "the-heron-sings-at-noon"
ANSWER = "an-answer-nobody-logs"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}]}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG)
    yield caplog
    shown = "\n".join(JSONFormatter().format(record) for record in caplog.get_records("call"))
    assert SECRET not in shown
    assert ANSWER not in shown


async def post(generator: ScriptedGenerator, body: Any, **options: Any) -> int:
    async with client_of(generator, **options) as client:
        headers = {"x-request-id": "mine-7"}
        response = await client.post("/v1/chat/completions", json=body, headers=headers)
    return response.status_code


def of_requests(lines: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        json.loads(JSONFormatter().format(line))
        for line in lines.records
        if line.name == "deployments.api.request_log"
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request(lines: pytest.LogCaptureFixture, stream: bool) -> None:
    generator = ScriptedGenerator(texts=(ANSWER, "."))
    assert await post(generator, CHAT | {"stream": stream}) == 200
    [line] = of_requests(lines)
    assert line["levelname"] == "INFO"
    assert "mine-7 finished (stop)" in line["message"]
    assert line["request_id"] == "mine-7"
    assert line["session_ids"] == [generator.requests[0].request_id]
    assert line["model"] == "tiny"
    assert line["prompt_tokens"] == len(generator.requests[0].prompt_ids)
    assert (line["completion_tokens"], line["cached_tokens"]) == (2, 2)
    assert (line["finish_reason"], line["status"], line["stream"]) == ("stop", 200, stream)
    assert (line["mean_k"], line["acceptance_rate"], line["num_rounds"]) == (2.0, 0.6, 5)
    assert 0 <= line["ttft_s"] <= line["duration_s"]


async def test_choices_share_a_line(lines: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(texts=(ANSWER,))
    await post(generator, CHAT | {"n": 3})
    [line] = of_requests(lines)
    assert sorted(line["session_ids"]) == sorted(one.request_id for one in generator.requests)
    assert line["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "error", "expected"),
    [
        (CHAT | {"temperature": SECRET}, None, (400, "invalid_request", "temperature", "INFO")),
        (CHAT | {SECRET + " !": 1}, None, (400, "invalid_request", None, "INFO")),
        (CHAT | {"model": SECRET}, None, (404, "model_not_found", "model", "INFO")),
        (CHAT, Overloaded("full"), (429, "overloaded", None, "WARNING")),
        (CHAT, Unavailable("no replica"), (503, "unavailable", None, "ERROR")),
        (CHAT, ConstraintViolation(ANSWER), (500, "constraint_violation", None, "ERROR")),
    ],
    ids=["value", "field", "model", "overloaded", "unavailable", "violation"],
)
async def test_a_refused_request(
    lines: pytest.LogCaptureFixture,
    body: Any,
    error: Exception | None,
    expected: tuple[int, str, str | None, str],
) -> None:
    status = await post(ScriptedGenerator(error=error), body)
    [line] = of_requests(lines)
    assert (status, line["code"], line["param"], line["levelname"]) == expected
    assert line["status"] == status
    assert line["request_id"] == "mine-7"


async def test_a_line_names_the_replicas(lines: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(texts=(ANSWER,), replicas={"target": "t-1", "draft": "d-1"})
    await post(generator, CHAT | {"n": 2})
    error = Unavailable("lost")
    error.replicas = {"target": "t-2"}
    await post(ScriptedGenerator(error=error), CHAT)
    finished, failed = of_requests(lines)
    assert (finished["target_replica"], finished["draft_replica"]) == ("t-1", "d-1")
    assert finished["message"].endswith(", draft d-1, target t-1")
    assert failed["target_replica"] == "t-2"


async def test_an_error_within_a_stream(lines: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(texts=(ANSWER, "."), error=Unavailable("lost"), error_at=1)
    assert await post(generator, CHAT | {"stream": True}) == 200
    [line] = of_requests(lines)
    assert (line["status"], line["code"], line["levelname"]) == (503, "unavailable", "ERROR")
    assert line["reason"] == "Unavailable: lost"
    assert line["session_ids"] == [generator.requests[0].request_id]


async def test_a_client_that_goes_away(lines: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(texts=(ANSWER, "."), hang_at=1)
    async with client_of(generator) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await generator.started.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    [line] = of_requests(lines)
    assert line["finish_reason"] == "client_gone"
    assert line["request_id"].startswith("req-")
    assert line["session_ids"] == [generator.requests[0].request_id]


async def test_operators_routes_leave_no_lines(lines: pytest.LogCaptureFixture) -> None:
    async with client_of(ScriptedGenerator()) as client:
        for path in ("/health", "/livez", "/metrics", "/v1/models"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/nowhere")).status_code == 404
    [line] = of_requests(lines)
    assert (line["path"], line["status"]) == ("/nowhere", 404)


# --- where lines go -------------------------------------------------------------------------------


@pytest.fixture
def serve_logger() -> Iterator[logging.Logger]:
    """Serve's, and ours, left as they were."""
    names = ("ray.serve", *PACKAGES, None)
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    yield loggers[0]
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def test_our_lines_are_serves_also_when_it_is_configured_anew(
    serve_logger: logging.Logger,
) -> None:
    join_serve()
    join_serve()
    for level, expected in ((logging.INFO, ["one"]), (logging.ERROR, [])):
        kept = BufferingHandler(capacity=100)
        serve_logger.handlers = [kept]
        serve_logger.setLevel(level)
        logging.getLogger("deployments.ingress.pools").info("one")
        assert [record.getMessage() for record in kept.buffer] == expected


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_writes_to_its_stderr(
    serve_logger: logging.Logger, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    configure_rank(as_json=as_json, component="rank", rank=1)
    logging.getLogger("deployments.engine.loop").info("idle", extra={"session_id": "s-1"})
    [line] = capsys.readouterr().err.splitlines()
    if as_json:
        content = json.loads(line)
        assert (content["component"], content["rank"], content["session_id"]) == ("rank", 1, "s-1")
        assert content["message"] == "idle"
    else:
        assert line.endswith("INFO idle")


def test_the_form_of_serves_file_is_known(serve_logger: logging.Logger) -> None:
    file = logging.NullHandler()
    serve_logger.handlers = [logging.StreamHandler(), MemoryHandler(1, target=file)]
    assert not is_json()
    file.setFormatter(JSONFormatter())
    assert is_json()
