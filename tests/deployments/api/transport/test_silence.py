"""Answers that take long: a byte comes before a proxy cuts the connection, and nobody is misled."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from deployments.api.http import create_app
from deployments.api.transport.settings import HttpConfig
from deployments.api.writing.sse import COMMENT
from models.protocol.errors import DeadlineExceeded
from tests.fakes.http import BODIES, CHAT, ScriptedGenerator, http_service
from tests.harness.http_clients import events_of

pytestmark = pytest.mark.virtual_time

BEAT_S, WHOLE_BEAT_S = 15.0, 45.0
EVENTS = pytest.mark.parametrize(
    ("path", "body"),
    [
        *BODIES.items(),
        ("/v1/responses", {"model": "tiny", "input": "hi"}),
    ],
    ids=["chat", "text", "responses"],
)


@dataclass
class Heard:
    """What a client heard, and when, in seconds since it asked. `is_whole`: ended in order."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    begun_s: float = -1.0
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    is_whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    @property
    def longest_silence_s(self) -> float:
        times = [0.0, self.begun_s, *(at_s for at_s, _ in self.parts)]
        return max(after - before for before, after in itertools.pairwise(times))


async def ask(
    generator: ScriptedGenerator,
    path: str,
    body: dict[str, Any],
    *,
    leaves_after_s: float | None = None,
    **transport: float,
) -> Heard:
    """Ask over plain ASGI, as a server does that sends each message at once."""
    app = create_app(http_service(generator, transport=HttpConfig.model_validate(transport)))
    heard, loop = Heard(), asyncio.get_running_loop()
    began_s, is_read = loop.time(), False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": json.dumps(body).encode()}
        if leaves_after_s is None:
            await asyncio.Event().wait()
        await asyncio.sleep(leaves_after_s or 0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        at_s = loop.time() - began_s
        if message["type"] == "http.response.start":
            heard.status, heard.begun_s = message["status"], at_s
            heard.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            if message["body"]:
                heard.parts.append((at_s, message["body"]))
            heard.is_whole = not message.get("more_body", False)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "server": ("test", 80),
    }
    await app(scope, receive, send)
    return heard


@EVENTS
async def test_a_stream_is_never_silent_for_longer_than_asked(path, body):
    slow = ScriptedGenerator(delay_s=100.0)
    heard = await ask(slow, path, body | {"stream": True}, heartbeat_s=BEAT_S)
    assert heard.status == 200
    assert heard.begun_s == pytest.approx(BEAT_S, abs=0.1)
    assert heard.longest_silence_s == pytest.approx(BEAT_S, abs=0.1)
    assert heard.is_whole


@EVENTS
async def test_without_its_comments_a_slow_stream_is_the_quick_one(path, body):
    options = {"stream": True, "seed": 1} if "responses" not in path else {"stream": True}
    quick = await ask(ScriptedGenerator(), path, body | options, heartbeat_s=BEAT_S)
    slow = await ask(ScriptedGenerator(delay_s=40.0), path, body | options, heartbeat_s=BEAT_S)
    assert quick.body.count(COMMENT) == 0
    assert slow.body.count(COMMENT) == 6  # two before each of three texts
    events = [event_names(heard.body.replace(COMMENT, b"")) for heard in (quick, slow)]
    assert events[0] == events[1]


def event_names(body: bytes) -> list[Any]:
    """What distinguishes events, but for ids and times."""
    found: list[Any] = []
    for line in body.decode().split("\n"):
        content = line.removeprefix("data: ")
        if line.startswith("id: "):
            continue
        if not line.startswith("data: ") or content == "[DONE]":
            found.append(line)
            continue
        event = json.loads(content)
        choices = [(c.get("delta"), c.get("text")) for c in event.get("choices", ())]
        found.append((event.get("type"), event.get("delta"), choices))
    return found


@EVENTS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_error_within_the_first_interval_has_its_status(path, body, stream):
    error = DelayedError(after_s=BEAT_S - 1)
    heard = await ask(error, path, body | {"stream": stream}, heartbeat_s=BEAT_S)
    assert heard.status == 504
    assert json.loads(heard.body)["error"]["code"] == "deadline_exceeded"
    assert heard.is_whole


class DelayedError(ScriptedGenerator):
    """Raises after a while, before any text."""

    def __init__(self, *, after_s: float) -> None:
        super().__init__(error=DeadlineExceeded("late"))
        self.after_s = after_s

    async def generate(self, request: Any, detokenizer: Any) -> Any:
        await asyncio.sleep(self.after_s)
        async for item in super().generate(request, detokenizer):
            yield item


@EVENTS
async def test_a_later_error_is_an_event_that_ends_the_stream(path, body):
    heard = await ask(
        DelayedError(after_s=3.5 * BEAT_S), path, body | {"stream": True}, heartbeat_s=BEAT_S
    )
    assert heard.status == 200
    assert heard.body.startswith(COMMENT * 3)
    last = heard.body.removeprefix(COMMENT * 3).decode()
    assert "deadline_exceeded" in last
    assert last.count("data: ") == 1
    assert heard.is_whole


async def test_a_whole_answer_begins_with_white_space_and_is_json():
    generator = ScriptedGenerator(delay_s=100.0)
    heard = await ask(generator, "/v1/chat/completions", CHAT, whole_heartbeat_s=WHOLE_BEAT_S)
    assert heard.status == 200
    assert heard.headers["content-type"] == "application/json"
    assert "content-length" not in heard.headers
    assert heard.longest_silence_s == pytest.approx(WHOLE_BEAT_S, abs=0.1)
    assert heard.body.startswith(b"\n" * 6 + b"{")
    assert json.loads(heard.body)["choices"][0]["message"]["content"] == "The bear."


async def test_a_quick_whole_answer_has_its_length_and_no_white_space():
    heard = await ask(ScriptedGenerator(), "/v1/chat/completions", CHAT)
    assert heard.headers["content-length"] == str(len(heard.body))
    assert heard.body.startswith(b"{")


async def test_a_whole_answer_that_fails_late_is_not_taken_for_a_success():
    error = DelayedError(after_s=2.5 * WHOLE_BEAT_S)
    heard = await ask(error, "/v1/chat/completions", CHAT, whole_heartbeat_s=WHOLE_BEAT_S)
    assert heard.status == 200
    assert json.loads(heard.body)["error"]["code"] == "deadline_exceeded"
    assert not heard.is_whole


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_0_is_never(stream):
    heard = await ask(
        ScriptedGenerator(delay_s=1000.0),
        "/v1/chat/completions",
        CHAT | {"stream": stream},
        heartbeat_s=0,
        whole_heartbeat_s=0,
    )
    assert heard.begun_s == pytest.approx(1000.0 if stream else 3000.0, abs=1)
    assert COMMENT not in heard.body
    assert not heard.body.startswith(b"\n")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("hang_at", [0, 1])
async def test_who_leaves_in_a_silence_holds_nothing(stream, hang_at):
    generator = ScriptedGenerator(hang_at=hang_at)
    before = asyncio.all_tasks()
    heard = await ask(
        generator, "/v1/chat/completions", CHAT | {"stream": stream}, leaves_after_s=200.0
    )
    assert generator.closed == 1
    assert asyncio.all_tasks() == before
    assert not heard.is_whole


async def test_comments_are_read_as_nothing():
    heard = await ask(
        ScriptedGenerator(delay_s=20.0), "/v1/chat/completions", CHAT | {"stream": True}
    )
    *chunks, done = events_of(heard.body.decode().replace(COMMENT.decode(), ""))
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "The bear."
