"""The load of a fault campaign must notice whatever goes wrong; here a scripted server does it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.client.cases import Case, constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from tests.fakes.scripted_server import Request, Script, ScriptedServer, answer, scripted_server
from tests.harness.waiting import block_until

WAIT_S = 20.0
GOOD = '{"a": 1}'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CONSTRAINED = Case("held", {"case": "held"}, SCHEMA)
FREE = Case("free", {"case": "free"})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(good()) as scripted:
        yield scripted


def events(*bodies: Any, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish_reason}]}


def good(text: str = GOOD) -> Script:
    return answer(events(chunk(text[:3]), chunk(text[3:], "stop")))


def late(script: Script, seconds: float) -> Script:
    def wait(request: Request) -> None:
        time.sleep(seconds)
        script(request)

    return wait


def run_until(load: FaultLoad, is_enough: Callable[[], bool]) -> None:
    load.start()
    try:
        block_until(is_enough)
    finally:
        load.stop()


def test_right_answers_are_no_failures(server: ScriptedServer) -> None:
    load = FaultLoad(server.url, [FREE, CONSTRAINED])
    assert load.prepare()["free"].text == GOOD
    run_until(load, lambda: load.num_answers >= 10)
    assert load.take_failures() == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (good('{"a": 2}'), "another text .*: at 6"),
        (answer(events(chunk(GOOD[:3]), chunk(GOOD[3:], "length"))), "finish_reason 'length'"),
        (answer(events(chunk(GOOD[:3]), {"error": {"message": "lost"}})), "error event.*lost"),
        (answer(events(chunk(GOOD, "stop"), done=False)), "cut after 8 characters"),
        (answer(events(chunk(GOOD, "stop")), announced_bytes=10_000), "RemoteProtocolError"),
        (answer(b'{"error": "busy"}', status=503), "HTTP 503: .*busy"),
    ],
    ids=["text", "finish reason", "error event", "no end", "cut", "refused"],
)
def test_wrong_answers_are_failures(server: ScriptedServer, script: Script, reason: str) -> None:
    load = FaultLoad(server.url, [CONSTRAINED])
    load.prepare()
    server.script = script
    run_until(load, lambda: load.num_answers >= 1)
    failures = load.take_failures()
    assert failures
    assert failures[0].case == "held"
    assert re.search(reason, failures[0].reason)
    assert failures[0].is_refusal == reason.startswith("HTTP 503")
    assert load.take_failures() == [], "reported once"


def marked(*bodies: Any, event_id: str) -> bytes:
    return events(*bodies, done=False)[:-1] + f"id: {event_id}\n\n".encode()


def test_a_stream_that_breaks_goes_on_behind_its_last_id(server: ScriptedServer) -> None:
    load = FaultLoad(server.url, [CONSTRAINED])
    load.prepare()
    asked: list[str] = []
    broken = marked(chunk(GOOD[:3]), event_id="one") + events(chunk("lost"), done=False)

    def breaking(request: Request) -> None:
        asked.append(request.headers.get("last-event-id", ""))
        if asked[-1] == "":
            answer(broken, announced_bytes=10_000)(request)
        elif len(asked) % 3 == 2:
            answer(b"Internal Server Error", status=500)(request)
        else:
            answer(events(chunk(GOOD[3:], "stop")))(request)

    server.script = breaking
    run_until(load, lambda: load.num_answers >= 2)
    assert load.take_failures() == []
    assert asked[:6] == ["", "one", "one"] * 2
    assert load.num_breaks >= 4


def test_a_reference_must_obey_its_schema_and_have_a_text(server: ScriptedServer) -> None:
    server.script = good('{"a": "x"}')
    with pytest.raises(RuntimeError, match=r"reference of held: .*'x' is not of type 'integer'"):
        FaultLoad(server.url, [CONSTRAINED]).prepare()
    server.script = good("")
    with pytest.raises(RuntimeError, match="reference of free: no text"):
        FaultLoad(server.url, [FREE]).prepare()


def test_waits_are_found_by_when_they_were_and_whose(server: ScriptedServer) -> None:
    load = FaultLoad(server.url, [FREE, CONSTRAINED])
    load.prepare()
    load.start()
    try:
        assert load.wait_steady(WAIT_S)
        began_s = time.monotonic()
        server.script = late(good(), 1.0)
        time.sleep(0.5)
        during = load.figures(began_s, time.monotonic())
        assert during["pause_constrained_s"] > 0.2, "a wait that lasts counts as well"
        assert load.wait_steady(WAIT_S)
        found = load.figures(began_s, time.monotonic())
        assert found["pause_constrained_s"] > 0.9
        assert found["pause_free_s"] > 0.9
        assert found["longest_gap_s"] < 0.9, "the prompt and a place in the queue are no gap"
        before = load.figures(began_s - 10.0, began_s - 5.0)
        assert set(before.values()) == {0.0}
    finally:
        load.stop()


def test_cases_differ_and_bound_their_answers() -> None:
    cases = [*free_cases(8), *constrained_cases(8)]
    assert len({case.name for case in cases}) == 16
    assert len({case.body["seed"] for case in cases}) == 16
    assert all("maxItems" in json.dumps(case.schema) for case in cases if case.is_constrained)
    assert {bool(case.body.get("speculation")) for case in cases} == {True, False}
