"""The fuzzer's own logic, its oracles, and a short seeded run of each part."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.fuzz import memory
from loadtest.fuzz.campaign import Limits, PartResult, run_one, run_part
from loadtest.fuzz.cases import Failure, Outcome, RunCase, case_seed
from loadtest.fuzz.engines.answers import Answer, broken_terms, difference
from loadtest.fuzz.engines.grammars import disobedience, random_schema
from loadtest.fuzz.engines.pair import grammar_host
from loadtest.fuzz.engines.requests import random_requests
from loadtest.fuzz.engines.rule_grammars import random_rules
from loadtest.fuzz.engines.tool_schemas import disobeyed_schema
from loadtest.fuzz.http.answers import HttpAnswer, wrong_with
from loadtest.fuzz.http.attacks import Attack
from loadtest.fuzz.memory import MemoryLog
from loadtest.fuzz.parts import PARTS
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar, GrammarOpen, GrammarReady, Sampling
from router.types import GenerationRequest

SEED = 20
Patch = pytest.MonkeyPatch


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("part", "num_cases", "must_have"),
    [
        ("engines", 8, ["compared", "held to their support", "preemptions", "accepted"]),
        ("tools", 4, ["loose served", "loosened", "strict served", "strict refused", "texts"]),
        ("failures", 30, ["deaths", "cancelled", "lost", "accepted"]),
        ("http", 20, ["status 200", "status 400"]),
        ("histories", 4, ["noisy", "with nulls"]),
        ("schema", 3, ["requests"]),
        ("proxies", 8, ["status 200", "status 400", "status 415", "kept alive"]),
        ("frames", 2, ["frames", "compared"]),
        ("folders", 12, ["refused", "served"]),
    ],
)
async def test_a_short_run_of_each_part_finds_nothing(
    part: str, num_cases: int, must_have: list[str]
) -> None:
    report = await run_part(part, PARTS[part], SEED, 1e6, limits=Limits(cases=num_cases))
    assert report.failures == []
    assert report.violations == []
    assert report.counts["cases"] == num_cases
    assert [name for name in must_have if not report.counts[name]] == []


def test_what_is_left_of_a_schema_is_judged_by_its_own_draft() -> None:
    tuples = {"type": "object", "properties": {"a": {"items": [{"type": "null"}]}}}
    assert "is not of type" in disobeyed_schema("7", tuples, (), '{"a": [1]}')
    assert disobeyed_schema("7", tuples, (), '{"a": [null]}') == ""
    part = Loosened(steps=("properties", "a", "items"), path="$.properties.a.items", reason="no")
    assert disobeyed_schema("7", tuples, (part,), '{"a": [1]}') == ""
    flag = {"type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}}
    assert disobeyed_schema("4", flag, (), '{"a": 1}')
    nullable = {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}}
    assert disobeyed_schema("openapi", nullable, (), '{"a": null}') == ""
    assert disobeyed_schema("7", nullable, (), '{"a": null}')


@pytest.mark.parametrize("draft", ["2019", "2020"])
def test_what_other_properties_allow_is_evaluated(draft: str) -> None:
    others = {"additionalProperties": {"type": "boolean"}, "unevaluatedProperties": False}
    schema = {"type": "object", "properties": {"a": {}}, **others}
    assert disobeyed_schema(draft, schema, (), '{"a": 1, "b": true}') == ""
    assert disobeyed_schema(draft, schema, (), '{"b": 1}')
    del schema["additionalProperties"]
    assert disobeyed_schema(draft, schema, (), '{"b": true}')


async def test_a_case_that_raises_or_hangs_is_a_failure(monkeypatch: Patch) -> None:
    async def raising(seed: int) -> Outcome:
        raise ValueError("broken")

    async def hanging(seed: int) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("loadtest.fuzz.campaign.CASE_LIMIT_S", 0.05)
    report = PartResult("failures")
    await run_one(report, raising, 7, lambda line: None)
    await run_one(report, hanging, 8, lambda line: None)
    assert "ValueError: broken" in report.failures[0].complaints[0]
    assert "hangs" in report.failures[1].complaints[0]


def test_the_command_repeats_one_case_and_writes_the_record(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    output = tmp_path / "fuzz.json"
    words = ["fuzz", "--set", "parts=http", "case=12", "--output", str(output)]
    assert main(words) == 0
    record = json.loads(output.read_text())
    assert record["command"] == (
        "python -m loadtest fuzz --set parts=http case=12 --output fuzz.json"
    )
    assert record["problems"] == []
    (row,) = record["samples"]
    assert (row["way"], row["runs"]["cases"], row["runs"]["failures"]) == ("http", [1], [0])
    assert record["events"][0]["counts"]["cases"] == 1


def test_a_part_that_fails_fails_the_trial(tmp_path: Path, monkeypatch: Patch) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[RunCase]:
        async def wrong(seed: int) -> Outcome:
            return Outcome(Counter(cases=1), complaints=["another text"])

        yield wrong

    monkeypatch.setitem(PARTS, "http", opened)
    output = tmp_path / "fuzz.json"
    words = ["fuzz", "--set", "parts=http", "minutes=0.001", "seed=5", "--output", str(output)]
    assert main(words) == 1
    record = json.loads(output.read_text())
    again = f"python -m loadtest fuzz --set parts=http case={case_seed(5, 'http', 0)}"
    assert record["problems"][0] == f"http: {again}: another text"


def test_a_seed_gives_the_same_requests_and_cases_their_own() -> None:
    def drawn(seed: int) -> list[GenerationRequest]:
        return random_requests(random.Random(seed), 5)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    seeds = {case_seed(1, part, i) for part in ("failures", "http") for i in range(100)}
    assert len(seeds) == 200
    assert Failure("http", 5, ()).command == ("python -m loadtest fuzz --set parts=http case=5")


REQUEST = GenerationRequest(
    request_id="r",
    prompt_ids=(5,),
    sampling=Sampling(),
    eos_ids=(0,),
    max_tokens=3,
)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(ids=(7, 8, 9, 9), finish_reason="length", num_tokens=4), "at most 3"),
        (Answer(ids=(7, 0, 9), finish_reason="length", num_tokens=3), "after an end"),
        (Answer(ids=(7,), finish_reason="length", num_tokens=1), "length after 1"),
        (Answer(ids=(7,), finish_reason="stop", num_tokens=1), "nothing stops"),
        (Answer(ids=(7, 8, 9), finish_reason="length", num_tokens=3, text="?"), "not that of"),
    ],
)
def test_answers_that_break_their_terms(answer: Answer, complaint: str) -> None:
    assert any(complaint in found for found in broken_terms(REQUEST, answer))


def test_answers_are_compared_to_the_last_bit() -> None:
    one = Answer(ids=(1, 2), text="ab", finish_reason="length", num_tokens=2)
    other = Answer(ids=(1, 3), text="ac", finish_reason="length", num_tokens=2)
    assert difference("r", one, one) == []
    assert difference("r", one, other) == [
        "r: ids differ: from 1: (2,) alone, (3,) now",
        "r: text differ: 'ab' alone, 'ac' now",
    ]


def test_grammars_are_judged_by_others_than_the_engine() -> None:
    schema = Grammar(kind="json_schema", text='{"type": "object", "required": ["a"]}')
    assert disobedience(schema, '{"a": 1}') == ""
    assert "'a' is a required property" in disobedience(schema, "{}")
    assert disobedience(Grammar(kind="regex", text="a+"), "aab")
    assert disobedience(Grammar(kind="choice", text='["a"]'), "b")
    assert disobedience(Grammar(kind="json_object", text=""), "[]")


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("attack", "answer", "complaint"),
    [
        ({}, HttpAnswer(500, {}, b""), "status 500"),
        ({}, HttpAnswer(400, {"x-request-id": "r"}, b"no"), "no OpenAI error"),
        ({}, HttpAnswer(0, {}, b""), "no answer"),
        ({"is_valid": True}, HttpAnswer(400, {"x-request-id": "r"}, b"{}"), "was refused"),
        (
            {"blamed": "top_k"},
            HttpAnswer(
                400,
                {"x-request-id": "r"},
                b'{"error": {"message": "no", "type": "t", "param": null, "code": null}}',
            ),
            "does not name 'top_k'",
        ),
        ({}, HttpAnswer(200, {"x-request-id": "r"}, b"{}"), "required property"),
        (
            {},
            HttpAnswer(200, {"x-request-id": "r", "content-type": "text/event-stream"}, b"data: "),
            "[DONE]",
        ),
    ],
)
def test_wrong_http_answers(attack: Any, answer: HttpAnswer, complaint: str) -> None:
    made = Attack("POST", CHAT, [], [], body={"max_tokens": 2}, **attack)
    assert any(complaint in found for found in wrong_with(made, answer))


def test_memory_that_grows_with_the_cases_is_told() -> None:
    log = MemoryLog()
    log.samples = [float(i) for i in range(100)] + [100.0] * 100  # only while it warms up
    assert log.complaint == ""
    log.samples = [100.0 + i for i in range(300)]
    assert log.growth_mib == pytest.approx(75.0)
    assert f"the limit is {memory.MAX_GROWTH_MIB:g}" in log.complaint
    log.samples = [100.0, 900.0]
    assert log.growth_mib is None


# --- grammars with rules --------------------------------------------------------------------------

ARGUMENTS = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


def _of_line(content: dict[str, Any], mark: str) -> str:
    return f"{mark} {json.dumps(content)}\n"


TAG = json.dumps(
    {
        "format": {
            "type": "triggered_tags",
            "triggers": ["<call "],
            "at_least_one": True,
            "stop_after_first": True,
            "tags": [
                {
                    "begin": "<call f>",
                    "end": "</call>",
                    "content": {"type": "json_schema", "json_schema": ARGUMENTS},
                }
            ],
        }
    }
)
LISTS = _of_line({"item": "[a-z]{1,4}|[0-9]{1,3}", "most": 2}, "#")
CALLS = _of_line({"tools": {"f": ARGUMENTS}, "most": 2}, "//")
FRAMED = _of_line({"open": "<", "close": ">", "schema": ARGUMENTS}, "//")
CALL = '{"name": "f", "arguments": {"n": 3}}'


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("ebnf", LISTS, ["[a]", "[a,[7,b]]", "[[[a]]]"], ["a", "[a,b,c]", "[[a]", "[a]]", "[@]"]),
        ("ebnf", _of_line({"regex": "(?:a|ab)c"}, "#"), ["ac", "abc"], ["a", "acc"]),
        ("lark", FRAMED, ['<{"n": 3}>'], ['{"n": 3}', '<{"n": 10}>', "<>", '<{"n": 3}']),
        ("lark", CALLS, [CALL, f"{CALL}\n{CALL}"], ["", CALL[:-1], f"{CALL} {CALL}", "{}"]),
        ("lark", CALLS, [], ["\n".join([CALL] * 3), CALL.replace('"f"', '"g"'), f"{CALL}\n"]),
        (
            "structural_tag",
            TAG,
            ['<call f>{"n": 3}</call>'],
            [
                *("", 'x<call f>{"n": 3}</call>', '<call f>{"n": 3}', '<call g>{"n": 3}</call>'),
                *('<call f>{"n": 10}</call>', '<call f>{"n": 3}</call>x'),
            ],
        ),
    ],
)
def test_the_oracles_of_rules_tell_right_from_wrong(
    kind: Any, text: str, right: list[str], wrong: list[str]
) -> None:
    grammar = Grammar(kind=kind, text=text)
    assert [one for one in right if disobedience(grammar, one)] == []
    assert [one for one in wrong if not disobedience(grammar, one)] == []


def test_random_rules_of_every_kind_are_served() -> None:
    host = grammar_host()
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        grammar = random_rules(rng, partial(random_schema, rng))
        seen.add(grammar.kind)
        reply = host.answer(GrammarOpen(session_id=str(seed), epoch=1, grammar=grammar))
        assert isinstance(reply, GrammarReady), (grammar.text, reply)
    assert seen == {"lark", "ebnf", "structural_tag"}
