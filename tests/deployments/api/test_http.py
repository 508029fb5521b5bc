"""The routes with a scripted generator: over ASGI, and with the openai client over a socket."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from deployments.api.health import HealthProbe
from deployments.api.http import create_app
from models.protocol.errors import (
    ConstraintViolation,
    DeadlineExceeded,
    Overloaded,
    Unavailable,
    UnsupportedGrammar,
)
from tests.deployments.api.asking import post
from tests.fakes.http import (
    BODIES,
    BOTH,
    CHAT,
    STATS,
    TEXT,
    ScriptedGenerator,
    http_service,
    tiny_tokenizer,
)
from tests.harness.http_clients import client_of, client_over, events_of, openai_client, served
from tests.harness.waiting import block_until

SPECULATIVE = {
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.6,
    "acceptance_histogram": [1, 1, 1, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 6,
    "num_draft_tokens": 10,
    "num_draft_tokens_by": {"draft_model": 7, "ngram": 3},
    "num_accepted_draft_tokens_by": {"draft_model": 5, "ngram": 1},
    "num_guess_tokens": 9,
    "num_right_guess_tokens": 4,
    "num_ahead_tokens": 5,
    "num_spec_tokens": 3,
    "drafts": None,
}


# --- whole answers --------------------------------------------------------------------------------


async def test_a_chat_answer_is_openais_with_seed_and_metrics():
    generator = ScriptedGenerator()
    response = await post("/v1/chat/completions", CHAT | {"seed": 5}, generator)
    answer = response.json()
    assert response.status_code == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert abs(answer["created"] - time.time()) < 60
    [choice] = answer["choices"]
    assert choice.keys() == {"index", "message", "finish_reason", "logprobs"}
    assert choice["message"] == {"role": "assistant", "content": "The bear.", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    num_prompt = len(generator.requests[0].prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 3,
        "total_tokens": num_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    assert answer["seed"] == 5 == generator.requests[0].sampling.seed
    assert answer["metrics"]["speculative_decoding"] == SPECULATIVE
    assert answer["metrics"]["rounds"]["num_rounds"] == STATS.num_rounds
    assert answer["metrics"]["rounds"]["verify_ms"] == 2.5
    assert generator.closed == 1


async def test_a_text_answer_is_openais():
    generator = ScriptedGenerator(finish_reason="length")
    answer = (await post("/v1/completions", TEXT, generator)).json()
    assert answer.keys() >= {"id", "created", "model"}
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "The bear.", "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["seed"] == generator.requests[0].sampling.seed
    assert answer["metrics"]["speculative_decoding"] == SPECULATIVE


# --- streams --------------------------------------------------------------------------------------


async def test_a_chat_stream_has_role_blocks_end_and_done():
    generator = ScriptedGenerator(texts=("The ", "", "bear."))
    response = await post("/v1/chat/completions", CHAT | {"stream": True}, generator)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    for chunk in chunks:
        assert chunk.keys() >= {"id", "object", "created", "model"}
        [choice] = chunk["choices"]
        assert choice.keys() >= {"index", "delta", "finish_reason"}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "The "},
        {"content": "bear."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert ["metrics" in chunk for chunk in chunks] == [False, False, False, True]
    assert chunks[-1]["metrics"]["speculative_decoding"] == SPECULATIVE
    assert chunks[-1]["seed"] == generator.requests[0].sampling.seed
    assert generator.closed == 1


@BOTH
async def test_usage_is_a_trailing_event_where_asked_for(path):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = await post(path, BODIES[path] | options)
    *chunks, usage, done = events_of(response.text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and "metrics" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["metrics"]["speculative_decoding"] == SPECULATIVE
    assert isinstance(usage["seed"], int)


async def test_a_text_stream_adds_up():
    response = await post("/v1/completions", TEXT | {"stream": True})
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    for chunk in chunks:
        assert chunk.keys() >= {"id", "object", "created", "model"}
        [choice] = chunk["choices"]
        assert choice.keys() == {"index", "text", "finish_reason", "logprobs"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "The bear."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@BOTH
async def test_an_error_after_the_first_text_ends_the_stream_as_an_event(path):
    generator = ScriptedGenerator(error=Unavailable("target lost"), error_at=2)
    response = await post(path, BODIES[path] | {"stream": True}, generator)
    assert response.status_code == 200
    *chunks, last = events_of(response.text)
    assert last["error"]["message"] == "target lost"
    assert last["error"]["type"] == "service_unavailable_error"
    assert chunks[0]["choices"][0].get("finish_reason") is None
    assert generator.closed == 1


async def test_a_fault_of_ours_within_a_stream_says_no_internals(caplog):
    generator = ScriptedGenerator(error=ZeroDivisionError("secret"), error_at=1)
    async with client_of(generator) as client:
        response = await client.post(
            "/v1/completions", json=TEXT | {"stream": True}, headers={"x-request-id": "mine-1"}
        )
    last = events_of(response.text)[-1]
    assert "secret" not in response.text
    assert "mine-1" in last["error"]["message"]
    assert "mine-1" in caplog.text
    assert "secret" in caplog.text


# --- errors before the first byte -----------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnsupportedGrammar("no", param="response_format"), 400, "unsupported_grammar"),
        (Overloaded("full", retry_after_s=3), 429, "overloaded"),
        (Unavailable("gone"), 503, "unavailable"),
        (DeadlineExceeded("late"), 504, "deadline_exceeded"),
        (ConstraintViolation("internal word"), 500, "constraint_violation"),
        (KeyError("internal word"), 500, "internal_error"),
    ],
    ids=["grammar", "overloaded", "unavailable", "late", "violation", "bug"],
)
async def test_an_error_before_the_first_text_has_its_status(path, stream, error, status, code):
    generator = ScriptedGenerator(error=error)
    response = await post(path, BODIES[path] | {"stream": stream}, generator)
    assert response.status_code == status
    told = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert told["code"] == code
    assert "internal word" not in told["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert generator.closed == 1


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"{}", 400, "invalid_request"),
        ("POST", "/v1/completions", b'{"model":"x","prompt":"a"}', 404, "model_not_found"),
        ("POST", "/v1/embeddings", b"{}", 404, "unknown_route"),
        ("POST", "/v1/completions/x", b"{}", 404, "unknown_route"),
        ("GET", "/v1/completions", b"", 405, "invalid_request"),
        ("GET", "/v1/models/other", b"", 404, "model_not_found"),
        ("POST", "/v1/completions", b" " * 5000, 413, "body_too_large"),
    ],
)
async def test_bad_requests_never_reach_the_generator(method, path, content, status, code):
    generator = ScriptedGenerator()
    async with client_of(generator, body_limit_bytes=4000) as client:
        response = await client.request(method, path, content=content)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"].startswith("req-")
    assert generator.requests == []


async def test_a_body_without_a_length_is_given_up_while_it_is_read():
    produced = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal produced
        while True:
            produced += 1
            yield b" " * 1000

    async with client_of(ScriptedGenerator(), body_limit_bytes=4000) as client:
        response = await client.post("/v1/completions", content=chunks())
    assert response.status_code == 413
    assert produced <= 6


async def test_a_body_that_never_comes_has_a_limit():
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with client_of(ScriptedGenerator(), body_timeout_s=0.02) as client:
        response = await client.post("/v1/completions", content=chunks())
    assert response.status_code == 504


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("abc-1.2_3:x", True), ("a b", False), ("x" * 129, False), ("<script>", False)],
)
async def test_a_sane_request_id_is_kept(given, is_kept):
    async with client_of(ScriptedGenerator()) as client:
        response = await client.get("/v1/models", headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) is is_kept


async def test_a_server_around_us_may_write_the_request_id():
    app = create_app(http_service(ScriptedGenerator()), sends_request_id=False)
    async with client_over(app) as client:
        assert "x-request-id" not in (await client.get("/v1/models")).headers


async def test_models_are_listed():
    async with client_of(ScriptedGenerator()) as client:
        listed = (await client.get("/v1/models")).json()
        single = (await client.get("/v1/models/tiny")).json()
        version = (await client.get("/version")).json()
    assert listed == {"object": "list", "data": [single]}
    assert single["id"] == "tiny"
    assert single["max_model_len"] == 200
    assert set(version) == {"version"}


# --- health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generator", "status", "reason"),
    [
        (ScriptedGenerator(), 200, "ok"),
        (ScriptedGenerator(error=Overloaded("full")), 200, "busy: full"),
        (ScriptedGenerator(error=Unavailable("no target")), 503, "no target"),
        (ScriptedGenerator(error=KeyError("secret")), 503, "internal error"),
        (ScriptedGenerator(hang_at=0), 503, "no token within 2.0 s"),
    ],
    ids=["ok", "busy", "unavailable", "bug", "hangs"],
)
async def test_health_is_a_real_round(generator, status, reason):
    async with client_of(generator) as client:
        response = await client.get("/health")
    assert response.status_code == status
    assert response.json()["reason"] == reason
    assert generator.closed == 1
    [request] = generator.requests
    assert (request.max_tokens, request.ignore_eos, request.speculation.enabled) == (1, True, False)


@pytest.mark.parametrize(("age_s", "is_healthy"), [(0.0, True), (60.0, False)])
async def test_a_full_target_that_makes_progress_is_busy_and_not_broken(age_s, is_healthy):
    generator = ScriptedGenerator(error=Unavailable("no Target replica granted a lease"))
    probe = HealthProbe(
        generator,
        tiny_tokenizer(),
        "tiny",
        timeout_s=0.2,
        last_progress_s=lambda: time.monotonic() - age_s,
    )
    health = await probe.check()
    assert (health.status == "ok") is is_healthy
    assert "no Target replica" in health.reason


async def test_many_askers_share_one_probe():
    generator = ScriptedGenerator(delay_s=0.01)
    async with client_of(generator) as client:
        responses = await asyncio.gather(*(client.get("/health") for _ in range(8)))
    assert {response.status_code for response in responses} == {200}
    assert len(generator.requests) == 1


# --- over a socket --------------------------------------------------------------------------------


MESSAGES: Any = CHAT["messages"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("error", "asked", "expected"),
    [
        (None, {"temperature": 3.0}, openai.BadRequestError),
        (None, {"model": "gpt"}, openai.NotFoundError),
        (Overloaded("full"), {}, openai.RateLimitError),
        (Unavailable("gone"), {}, openai.InternalServerError),
    ],
    ids=["bad", "unknown", "full", "gone"],
)
def test_the_openai_client_raises_its_own_errors(error, asked, expected, stream):
    fields: Any = {"model": "tiny", "messages": MESSAGES, "stream": stream} | asked
    with openai_client(ScriptedGenerator(error=error)) as client:
        with pytest.raises(expected) as caught:
            client.chat.completions.create(**fields)
        assert caught.value.request_id
    if expected is openai.BadRequestError:
        assert caught.value.param == "temperature"


def test_the_openai_client_raises_on_an_error_event():
    generator = ScriptedGenerator(error=Unavailable("target lost"), error_at=1)
    with openai_client(generator) as client:
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="target lost"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("hang_at", [0, 1], ids=["before-first", "after-first"])
def test_a_client_that_goes_away_ends_the_generation(stream, hang_at):
    generator = ScriptedGenerator(hang_at=hang_at)
    with served(generator) as url:
        body = json.dumps(CHAT | {"stream": stream}).encode()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            block_until(lambda: len(generator.requests) == 1)
            if stream and hang_at:
                assert connection.recv(16)
        block_until(lambda: generator.closed == 1)


# --- the application itself -----------------------------------------------------------------------


async def test_a_dropped_application_is_freed():
    """Some frameworks keep every route that they ever called, and the engines behind it."""
    service = http_service(ScriptedGenerator())
    app = create_app(service)
    async with client_over(app) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await client.get("/v1/models/tiny")).status_code == 200
        assert (await client.get("/")).status_code == 200
    freed = weakref.ref(app), weakref.ref(service.generator)
    del app, service, client
    gc.collect()
    assert [one() for one in freed] == [None, None]
