"""The locust workload's own parts: what is asked, how answers are judged, when users come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadtest.client.answers import Judge, StreamedAnswer
from loadtest.client.shapes import Arrival, Ramp, Spike, read_trace
from loadtest.client.workload import Request, Workload

KINDS = ("chat", "record", "shared", "bad")


def workload(seed: int = 1) -> Workload:
    return Workload("m", seed, max_tokens=50, record_max_tokens=300, shared_words=100)


def event(**content: Any) -> str:
    return "data: " + json.dumps(content)


def chunk(text: str = "", finish_reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return event(choices=[choice], **more)


def answer_of(lines: list[str], every_s: float = 0.1) -> StreamedAnswer:
    answer = StreamedAnswer(began_s=10.0)
    for number, line in enumerate(lines, 1):
        answer.take(line, 10.0 + number * every_s)
    return answer


def finished(text: str) -> StreamedAnswer:
    return answer_of([chunk(text), chunk(finish_reason="stop"), "data: [DONE]"])


# --- what is asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_asks_the_same_things(kind: str) -> None:
    first = [workload().of_kind(kind, number) for number in range(20)]
    assert first == [workload().of_kind(kind, number) for number in range(20)]
    assert first != [workload(seed=2).of_kind(kind, number) for number in range(20)]
    assert len({json.dumps(request.body) for request in first}) > 4


def test_shared_prompts_begin_alike_and_are_long() -> None:
    bodies = [workload().shared(number).body for number in range(8)]
    prompts = {body["messages"][0]["content"] for body in bodies}
    assert len(prompts) == 1
    assert len(prompts.pop().split()) == 100


def test_every_schema_is_one() -> None:
    for number in range(8):
        schema = workload().record(number).schema
        assert schema is not None
        jsonschema.Draft202012Validator.check_schema(schema)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of chat.*got 'cat'"):
        workload().of_kind("cat", 1)


# --- how answers are judged


def test_figures_come_from_the_stream() -> None:
    metrics = {"speculative_decoding": {
        "draft_acceptance_rate": 0.5, "num_draft_tokens": 12, "num_spec_steps": 4}}  # fmt: skip
    answer = answer_of(
        [
            chunk("The "),
            "",
            chunk("bear"),
            chunk(".", "stop", metrics=metrics),
            event(choices=[], usage={"completion_tokens": 5}),
            "data: [DONE]",
        ]
    )
    assert answer.text == "The bear."
    assert answer.is_done
    figures = answer.figures()
    assert figures["TTFT, ms"] == pytest.approx(100)
    assert figures["inter-token latency, ms"] == pytest.approx(300 / 4)
    assert figures["tokens/s"] == pytest.approx(5 / 0.4)
    assert figures["acceptance, %"] == 50
    assert figures["k, hundredths"] == 300


def test_right_answers_pass() -> None:
    judge = Judge(expects_same_text=True)
    request = workload().chat(1)
    assert judge.complaint(request, finished("A bear.")) == ""
    assert judge.complaint(request, finished("A bear.")) == ""
    assert judge.complaint(workload().chat(2), finished("A dog.")) == ""


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([chunk("The ")], "broke off"),
        ([chunk("The "), "data: [DONE]"], "broke off"),
        ([chunk("The "), event(error={"message": "target lost"})], "target lost"),
    ],
)
def test_an_answer_without_its_end_is_wrong(lines: list[str], complaint: str) -> None:
    judge = Judge(expects_same_text=True)
    assert complaint in judge.complaint(workload().chat(1), answer_of(lines))


def test_another_text_for_the_same_seed_is_wrong_unless_allowed() -> None:
    request = workload().chat(1)
    for expects, complaint in [(True, "another text"), (False, "")]:
        judge = Judge(expects_same_text=expects)
        judge.complaint(request, finished("A bear."))
        wrong = judge.complaint(request, finished("A dog."))
        assert complaint in wrong
        assert bool(wrong) is expects


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "not JSON"), ('{"a": "x"}', "outside its schema"), ("{}", "")]
)
def test_json_is_held_to_its_schema(text: str, complaint: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = Request("record", "key", {}, schema=schema)
    wrong = Judge(expects_same_text=True).complaint(request, finished(text))
    assert complaint in wrong
    assert bool(wrong) == bool(complaint)


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
    request = Request("bad request", "", {}, bad_field="temperature")
    wrong = Judge.refusal_complaint(request, status, content)
    assert complaint in wrong
    assert bool(wrong) == bool(complaint)


# --- when users come


def test_a_ramp_rises_and_holds_and_ends() -> None:
    ramp = Ramp(users=10, rise_s=20, hold_s=10)
    assert [ramp.users_at(time_s) for time_s in (0, 1, 10, 20, 29, 30)] == [1, 1, 5, 10, 10, None]


def test_a_spike_is_the_middle_third() -> None:
    spike = Spike(users=4, factor=3, length_s=30)
    assert [spike.users_at(time_s) for time_s in (0, 9, 10, 19, 20, 30)] == [4, 4, 12, 12, 4, None]


def test_a_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("kind,at_s\nchat,2.5\nbad,0\n")
    assert read_trace(path, KINDS) == [Arrival(0.0, "bad"), Arrival(2.5, "chat")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time,kind\n1,chat\n", "must have the columns at_s,kind"),
        ("at_s,kind\nsoon,chat\n", "line 2: at_s must be a number, got 'soon'"),
        ("at_s,kind\n-1,chat\n", "0 or more"),
        ("at_s,kind\n1,chat\n2,cat\n", "line 3: kind must be one of .* got 'cat'"),
        ("at_s,kind\n", "no arrivals"),
    ],
)
def test_a_wrong_trace_is_refused_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_trace(path, KINDS)
