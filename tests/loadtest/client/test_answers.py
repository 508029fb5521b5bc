"""The one reader of streams and the one check of answers, on lines made up for them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from loadtest.client.answers import Answer, check_answer, check_asked, check_refusal
from loadtest.client.http import CHAT, complete
from loadtest.client.workload import Asking, Request

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
DONE = "data: [DONE]"


def event(**content: Any) -> str:
    return "data: " + json.dumps(content)


def chunk(text: str = "", finish_reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return event(choices=[choice], **more)


def answer_of(*lines: str, every_s: float = 0.1) -> Answer:
    answer = Answer(began_s=10.0)
    for number, line in enumerate(lines, 1):
        answer.take(line, 10.0 + number * every_s)
    return answer


def finished(text: str, reason: str = "stop") -> Answer:
    return answer_of(chunk(text), chunk(finish_reason=reason), DONE)


def test_figures_come_from_the_stream() -> None:
    metrics = {"speculative_decoding": {
        "draft_acceptance_rate": 0.5, "num_draft_tokens": 12, "num_spec_steps": 4}}  # fmt: skip
    answer = answer_of(
        chunk("The "),
        "",
        chunk("bear"),
        chunk(".", "stop", metrics=metrics),
        event(choices=[], usage={"completion_tokens": 5}),
        DONE,
    )
    assert (answer.text, answer.is_done, answer.num_draft_tokens) == ("The bear.", True, 12)
    figures = answer.figures()
    assert figures["TTFT, ms"] == pytest.approx(100)
    assert figures["inter-token latency, ms"] == pytest.approx(300 / 4)
    assert figures["tokens/s"] == pytest.approx(5 / 0.4)
    assert figures["acceptance, %"] == 50


def test_only_events_count_and_completions_have_their_own_text() -> None:
    answer = Answer()
    text = event(choices=[{"text": "Once", "finish_reason": "length"}])
    taken = [answer.take(line, 1.0) for line in (text, "", ": keep-alive", DONE)]
    assert taken == [True, False, False, False]
    assert (answer.text, answer.finish_reason) == ("Once", "length")


@pytest.mark.parametrize(
    ("answer", "schema", "complaint"),
    [
        (finished("A bear."), None, ""),
        (finished("A dog."), None, "another text for the same seed: at 2: 'A dog.' for 'A bear.'"),
        (finished("A bear.", "length"), None, "finish_reason 'length' for 'stop'"),
        (answer_of(chunk("The ")), None, "cut after 4 characters"),
        (answer_of(chunk("The "), DONE), None, "without an end"),
        (answer_of(chunk("The "), event(error={"message": "lost"})), None, "error event: .*lost"),
        (finished('{"a": 1}'), SCHEMA, ""),
        (finished('{"a": 1'), SCHEMA, "not JSON"),
        (finished('{"a": "x"}'), SCHEMA, "outside its schema: 'x' is not of type 'integer'"),
        (finished('{"a": ', "length"), SCHEMA, "ended by 'length' before its JSON did"),
    ],
)  # fmt: skip
def test_answers_are_checked(answer: Answer, schema: dict[str, Any], complaint: str) -> None:
    known = None if schema else finished("A bear.")
    problem = check_answer(answer, schema=schema, known=known)
    assert bool(problem) == bool(complaint)
    assert re.search(complaint, problem)


@pytest.mark.parametrize(("known", "complaint"), [({}, "another text"), (None, "")])
def test_a_request_keeps_its_first_right_text_unless_any_is_allowed(
    known: dict[str, Answer] | None, complaint: str
) -> None:
    asking = Asking(Request("record", "key", {}, schema=SCHEMA))
    assert "not JSON" in check_asked(asking, finished("wrong at first"), known)
    assert check_asked(asking, finished('{"a": 1}'), known) == ""
    problem = check_asked(asking, finished('{"a": 2}'), known)
    assert problem.startswith(complaint)
    assert bool(problem) == bool(complaint)
    other = Asking(Request("record", "other", {}, schema=SCHEMA))
    assert check_asked(other, finished('{"a": 2}'), known) == ""


@pytest.mark.parametrize(
    ("status", "content", "complaint"),
    [
        (400, '{"error": {"param": "temperature"}}', ""),
        (400, '{"error": {"param": "messages.0"}}', "names 'messages.0'"),
        (400, "oops", "not OpenAI's"),
        (200, "", "status 200"),
        (500, '{"error": {"param": "temperature"}}', "status 500"),
    ],
)
def test_a_refusal_must_name_the_field(status: int, content: str, complaint: str) -> None:
    answer = Answer()
    answer.refuse(status, content)
    problem = check_refusal(answer, "temperature")
    assert complaint in problem
    assert bool(problem) == bool(complaint)


@pytest.mark.parametrize(
    ("status", "lines", "complaint"),
    [
        (200, [chunk("The "), chunk("end", "stop"), DONE], ""),
        (503, ["gone"], "HTTP 503: gone"),
        (200, [chunk("The ")], "cut after 4 characters"),
    ],
)
def test_a_bench_reads_a_whole_answer_or_raises(
    status: int, lines: list[str], complaint: str
) -> None:
    content = "\n\n".join(lines)
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=content))
    with httpx.Client(transport=transport, base_url="http://x") as client:
        if complaint:
            with pytest.raises(RuntimeError, match=complaint):
                complete(client, CHAT, {})
            return
        answer = complete(client, CHAT, {})
    assert answer.text == "The end"
    assert answer.ended_s > answer.began_s > 0
