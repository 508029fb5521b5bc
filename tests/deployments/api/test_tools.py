"""Tools and reasoning over HTTP, with a scripted generator: what is asked, and what is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from deployments.api.requests import ServedModel, prepare_turn
from deployments.api.schemas.requests import ChatCompletionRequest
from deployments.api.turns.asked_turn import AskedTurn
from models.protocol.errors import InvalidRequest, UnsupportedGrammar
from models.text.tools.formats import HERMES, LLAMA3_JSON
from models.text.tools.prompt import TurnFormats
from models.text.tools.reasoning import REASONING
from router.types import GenerationRequest
from tests.deployments.api.asking import post, read, refusal
from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.http_clients import events_of


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


ADD = tool(
    "add",
    description="Add two numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
    strict=True,
)
NOTE = tool("note")
USER = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [USER], "tools": [ADD, NOTE]}
ROOMY = served_model(max_model_len=2000)
ONE = '{"name": "add", "arguments": {"a": 1, "b": 20}}'
TWO = f'Well.\n{ONE}\n{{"name": "note", "arguments": {{}}}}'
TEXTS = tuple(TWO[i : i + 3] for i in range(0, len(TWO), 3))
ADDED = {"name": "add", "arguments": '{"a": 1, "b": 20}'}
NOTED = {"name": "note", "arguments": "{}"}


def asked(model: ServedModel = ROOMY, **fields: Any) -> tuple[GenerationRequest, AskedTurn]:
    return prepare_turn(read(ChatCompletionRequest, CHAT, **fields), model, "r1")


def grammar_of(**fields: Any) -> str:
    request, _ = asked(**fields)
    return "" if request.grammar is None else request.grammar.text


def prompt_of(**fields: Any) -> str:
    return ROOMY.tokenizer.decode(asked(**fields)[0].prompt_ids)


async def ask(
    generator: ScriptedGenerator, model: ServedModel = ROOMY, **fields: Any
) -> httpx.Response:
    return await post("/v1/chat/completions", CHAT | fields, generator, model=model)


async def answer(texts: tuple[str, ...], **fields: Any) -> Any:
    response = await ask(ScriptedGenerator(texts=texts), **fields)
    assert response.status_code == 200, response.text
    return response.json()


# --- answers --------------------------------------------------------------------------------------


async def test_calls_are_part_of_the_message():
    [choice] = (await answer(TEXTS))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["role"], message["content"], message["refusal"]) == ("assistant", "Well.", None)
    assert [call["function"] for call in message["tool_calls"]] == [ADDED, NOTED]
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    ids = [call["id"] for call in message["tool_calls"]]
    assert all(call_id.startswith("call_") for call_id in ids)
    assert len(set(ids)) == 2


async def test_a_message_of_calls_alone_has_no_content():
    [choice] = (await answer((ONE,), tool_choice="required"))["choices"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


async def test_text_under_auto_is_text():
    [choice] = (await answer(("Just ", "text.")))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Just text.", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_a_turn_that_was_cut_off_says_so_and_has_what_came():
    generator = ScriptedGenerator(texts=TEXTS[:14], finish_reason="length")
    [choice] = (await ask(generator)).json()["choices"]
    assert choice["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    assert ADDED["arguments"].startswith(call["function"]["arguments"])


async def test_each_choice_is_read_on_its_own():
    texts_of = {3: (ONE,), 4: ("No.",)}
    response = await ask(ScriptedGenerator(texts_of=texts_of), n=2, seed=3)
    calling, saying = response.json()["choices"]
    assert [call["function"] for call in calling["message"]["tool_calls"]] == [ADDED]
    assert (calling["finish_reason"], saying["finish_reason"]) == ("tool_calls", "stop")
    assert saying["message"]["content"] == "No."


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_adds_up_to_the_answer(size):
    texts = tuple(TWO[i : i + size] for i in range(0, len(TWO), size))
    response = await ask(ScriptedGenerator(texts=texts), stream=True)
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    content = ""
    calls: list[dict[str, str]] = []
    for event in events:
        [choice] = event["choices"]
        content += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                assert part.keys() == {"index", "id", "type", "function"}
                calls.append(part["function"])
            else:
                assert part.keys() == {"index", "function"}
                calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert content == "Well."
    assert calls == [ADDED, NOTED]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in events[-2:]] == [None, "tool_calls"]


async def test_a_stream_that_must_call_begins_without_content():
    must_call: dict[str, Any] = {"stream": True, "tool_choice": "required"}
    events = events_of((await ask(ScriptedGenerator(texts=(ONE,)), **must_call)).text)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}


@pytest.mark.parametrize("text", ['{"name": "Ann", "age": 3}', '{"name": "add"}', '{"name": "'])
async def test_an_answer_under_a_schema_may_begin_like_a_call(text: str) -> None:
    schema = {"name": "p", "schema": {"type": "object"}}
    fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": schema}}
    whole = (await ask(ScriptedGenerator(texts=list(text)), **fields)).json()
    [choice] = whole["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]
    stream = await ask(ScriptedGenerator(texts=list(text)), **fields, stream=True)
    deltas = [event["choices"][0]["delta"] for event in events_of(stream.text)[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text


# --- reasoning ------------------------------------------------------------------------------------


def thinking(layout: Any = HERMES) -> ServedModel:
    return replace(ROOMY, formats=TurnFormats(layout=layout, reasoning=REASONING["qwen3"]))


async def test_reasoning_is_apart_from_the_content():
    generator = ScriptedGenerator(texts=("<thi", "nk>\nSo.\n</th", "ink>\n\nYes", "."))
    whole = (await ask(generator, thinking(), tools=[])).json()
    stream = await ask(generator, thinking(), tools=[], stream=True)
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("So.", "Yes.")
    deltas = [event["choices"][0]["delta"] for event in events_of(stream.text)[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "So."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    assert generator.requests[0].grammar is None


def test_constraints_apply_after_reasoning():
    request, turn = asked(
        thinking(), tools=[], structured_outputs={"choice": ["yes", "no"]}, tool_choice="auto"
    )
    assert request.grammar is not None
    assert request.grammar.text.startswith('start: ("<think>" thought /[ \\n]{0,4}/)? (body)\n')
    assert 'body: "yes" | "no"' in request.grammar.text
    assert turn.fields == ("structured_outputs.choice",) * 2


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ({"regex": r"a/b\/\n" + "\n"}, r"body: /a\/b\/\n\n/"),
        ({"json": {"type": "integer"}}, 'body: %json {"type": "integer"}'),
        ({"json_object": True}, 'body: %json {"type": "object"}'),
    ],
)
def test_each_kind_of_constraint_is_written_as_a_rule(outputs, body):
    request, _ = asked(thinking(), tools=[], structured_outputs=outputs)
    assert request.grammar is not None
    assert body in request.grammar.text.splitlines()


def test_a_grammar_of_the_client_stands_alone():
    request, turn = asked(thinking(), tools=[], structured_outputs={"grammar": 'start: "a"'})
    assert request.grammar is not None
    assert request.grammar.text == 'start: "a"'
    assert turn.turn is None


# --- what is asked --------------------------------------------------------------------------------


def test_auto_leaves_text_free_until_a_call_begins():
    text = grammar_of()
    assert text.startswith("start: (FREE | lead call ")
    assert "call_0: " in text
    assert "call_1: " in text


def test_none_hides_the_tools_and_constrains_nothing():
    assert grammar_of(tool_choice="none") == ""
    assert "add" not in prompt_of(tool_choice="none")
    assert '"name": "add"' in prompt_of()


def test_a_named_tool_is_the_only_one_and_called_once():
    text = grammar_of(tool_choice={"type": "function", "function": {"name": "note"}})
    assert "FREE" not in text
    assert "call_1" not in text
    assert "{0," not in text


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_are_all_that_may_be_called_and_the_model_sees_the_others():
    for mode in ("auto", "required"):
        choice = allowed(mode, "note")
        assert grammar_of(tool_choice=choice) == grammar_of(tools=[NOTE], tool_choice=mode)
        assert prompt_of(tool_choice=choice) == prompt_of(tool_choice=mode)
    both = allowed("required", "note", "add")
    assert grammar_of(tool_choice=both) == grammar_of(tool_choice="required")


@pytest.mark.parametrize(
    ("model", "fields", "is_parallel"),
    [
        (ROOMY, {}, True),
        (ROOMY, {"parallel_tool_calls": False}, False),
        (replace(ROOMY, formats=TurnFormats(layout=LLAMA3_JSON)), {}, False),
    ],
)
def test_there_may_be_several_calls_where_client_and_format_let_them(model, fields, is_parallel):
    request, _ = asked(model, tool_choice="required", **fields)
    assert request.grammar is not None
    assert ("{0,31}" in request.grammar.text) == is_parallel


@pytest.mark.parametrize(
    ("parameters", "added"),
    [
        (None, {"additionalProperties": False}),
        ({}, {"additionalProperties": False}),
        ({"properties": {"a": {}}}, {"additionalProperties": False}),
        ({"type": "object", "additionalProperties": True}, {}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}}, {}),
    ],
)
def test_arguments_are_an_object_that_is_closed_unless_the_schema_opens_it(parameters, added):
    one = tool("f") if parameters is None else tool("f", parameters=parameters)
    line = grammar_of(tools=[one]).splitlines()[1]
    schema = json.loads(line.partition("%json ")[2])
    assert schema == {"type": "object", **(parameters or {}), **added}


def test_what_only_describes_is_no_part_of_the_grammar():
    inner = {"type": "string", "title": "T", "default": "a", "enum": ["title"]}
    properties = {"title": {**inner, "description": "d"}, "examples": {"items": inner}}
    described = [tool("f", parameters={"properties": properties})]
    line = grammar_of(tools=described).splitlines()[1]
    bare = {"type": "string", "enum": ["title"]}
    schema = json.loads(line.partition("%json ")[2])
    assert schema["properties"] == {"title": bare, "examples": {"items": bare}}
    assert '"description": "d"' in prompt_of(
        tools=[tool("f", parameters={"properties": properties})]
    )


def test_a_constraint_stands_beside_tools_until_one_must_be_called():
    constraint = {"structured_outputs": {"choice": ["yes"]}}
    assert 'body: "yes"' in grammar_of(**constraint)
    assert "body" not in grammar_of(**constraint, tool_choice="required")


def test_history_with_calls_is_rendered():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    empty = {"id": "c2", "function": {"name": "note", "arguments": ""}, "index": 1}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call, empty], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "21"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
    ]
    text = prompt_of(messages=messages)
    assert '{"name": "add", "arguments": {"a": 1}}\n{"name": "note", "arguments": {}}' in text
    assert text.endswith("add returned: 21\nnote returned: done")


async def test_an_answer_can_be_sent_back():
    message = (await answer(TEXTS))["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "5"}
        for call in message["tool_calls"]
    ]
    assert f"Well.\n{ONE}" in prompt_of(messages=[USER, message, *results])


# --- refusals -------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
DEEP: Any = {}
for _ in range(60):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [ADD, NOTE, ADD]}, "tools[2].function.name", "tools[0] already"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", '"a b"'),
        ({"tools": [tool("a" * 65)]}, "tools[0].function.name", "{1,64}"),
        (
            {"tools": [tool(f"f{i}") for i in range(129)]},
            "tools",
            "at most 128 are allowed (got 129)",
        ),
        ({"tools": [tool("f", weight=1)]}, "tools[0].function.weight", "unknown field"),
        (
            {"tools": [tool("f", parameters=DEEP, strict=True)]},
            "tools[0].function.parameters",
            "48 levels",
        ),
        (
            {"tools": [tool("f", parameters={"type": "array"}, strict=True)]},
            "tools[0].function.parameters",
            "'a",
        ),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", '"custom"'),
        ({"tools": [tool("f") | {str(i): i for i in range(200)}]}, "tools[0]", "at most 128"),
        ({"tools": [], "tool_choice": "required"}, "tools", "must not be empty"),
        ({"tool_choice": "any"}, "tool_choice", '"any"'),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed_tools"),
        ({"tool_choice": allowed("none", "add")}, "tool_choice", "with 1 to 128 tools"),
        ({"tool_choice": allowed("auto")}, "tool_choice", "with 1 to 128 tools"),
        ({"tool_choice": allowed("auto", "a=b")}, "tool_choice", "allowed_tools"),
        (
            {"tool_choice": allowed("auto", "add", "sub")},
            "tool_choice.allowed_tools.tools[1].function.name",
            '"sub"; there are add, note',
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice.function.name",
            '"sub"; there are add, note',
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "add,note"}}},
            "tool_choice.function.name",
            '"add,note"; there are add, note',
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": ""}}},
            "tool_choice.function.name",
            '""; there are add, note',
        ),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", '"no"'),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            "structured_outputs.grammar",
            "together with tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]},
            "messages[0].tool_calls",
            "at most 128",
        ),
    ],
)
def test_refusals_name_the_field(fields, param, words):
    with pytest.raises(InvalidRequest) as refused:
        asked(**fields)
    assert words in refused.value.message
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ("line 3: %json: $.a.type: no", "tools[1].function.parameters", "$.a.type: no"),
        ("line 2, column 9: %json: no", "tools[0].function.parameters", "no"),
        ("line 4: %json: no", "response_format.json_schema.schema", "no"),
        ("the grammar has 70000 bytes", "tools", "the grammar has 70000 bytes"),
    ],
)
async def test_a_refused_schema_is_named_by_its_tool(message, param, told):
    schema = {"name": "x", "schema": {"type": "object"}}
    wanted = {"type": "json_schema", "json_schema": schema}
    generator = ScriptedGenerator(error=UnsupportedGrammar(message))
    response = await ask(generator, response_format=wanted)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param}: {told}"


async def test_text_completions_have_no_tools():
    body = {"model": "tiny", "prompt": "hi", "parallel_tool_calls": True, "tools": []}
    assert (await post("/v1/completions", body)).status_code == 200
    assert (await refusal("/v1/completions", body | {"tools": [ADD]}))["param"] == "tools"
