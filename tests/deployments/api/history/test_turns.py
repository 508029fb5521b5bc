"""Turns that clients carry back: every shape is read, and what is noise moves no prompt."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest

from deployments.api.history.turns import turns_of
from deployments.api.requests import prepare_turn
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.schemas.requests import ChatCompletionRequest
from models.protocol.errors import InvalidRequest
from models.text.tools.formats import LLAMA3_JSON, MISTRAL
from models.text.tools.prompt import TurnFormats
from tests.deployments.api.asking import read
from tests.fakes.http import CHAT, served_model

ROOMY = served_model(max_model_len=4000)
USER = {"role": "user", "content": "hi"}
ARGUMENTS = {"city": "Paris"}
FUNCTION = {"name": "f", "arguments": '{"city": "Paris"}'}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "31"}


def turns(*messages: Any) -> list[dict[str, Any]]:
    parsed = read(ChatCompletionRequest, CHAT, messages=[USER, *messages, USER])
    prepare_turn(parsed, ROOMY, "r1")  # it can be rendered
    first, *others, last = turns_of(parsed.messages)
    assert first == last == USER
    return others


def said(**fields: Any) -> dict[str, Any]:
    [turn] = turns({"role": "assistant", **fields})
    return turn


def arguments(value: Any) -> Any:
    call = {"id": "c1", "function": {"name": "f", "arguments": value}}
    [called] = said(content=None, tool_calls=[call])["tool_calls"]
    return called["function"]["arguments"]


@pytest.mark.parametrize(
    "value",
    [
        '{"city": "Par',
        "",
        "  ",
        "null",
        "[]",
        "[1]",
        '"x"',
        "7",
        None,
        7,
        [],
        "{'a': 1}",
        "{" * 5000,
        "1" * 5000,
        json.dumps({"a": "x"}) + "}",
        '{"a":' * 60 + "1" + "}" * 60,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_arguments_that_are_no_object_count_as_none(value):
    assert arguments(value) == {}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": None}, {"a": None}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"a": "\\ud800"}', {"a": "?"}),
        ('{"a": null}', {"a": None}),
    ],
)
def test_arguments_that_are_an_object_stay(value, read):
    assert arguments(value) == read


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "So."},
        {"reasoning": "So."},
        {"thinking": "So."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "So.", "index": 0}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "So.", "signature": "s"}]},
        {"content": [{"type": "thinking", "thinking": "So."}, {"type": "text", "text": "Yes."}]},
        {"reasoning": "So.", "reasoning_content": None, "reasoning_details": []},
        {"reasoning": {"content": [{"type": "reasoning_text", "text": "So."}]}},
    ],
)
def test_reasoning_is_read_under_every_name(fields):
    turn = said(**({"content": "Yes."} | fields))
    assert turn == {"role": "assistant", "content": "Yes.", "reasoning_content": "So."}


@pytest.mark.parametrize(
    "noise",
    [
        {"refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"refusal": "No.", "annotations": [{"type": "url_citation"}], "images": [{}]},
        {"id": "msg_1", "phase": "final", "status": "completed", "weight": 1},
        {"provider_specific_fields": {"a": 1}, "cache_control": {"type": "ephemeral"}},
        {"tool_calls": []},
        {"tool_calls": None},
        {"tool_calls": 5},
        {"tool_calls": [None, 1, {}]},
        {"name": 5},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"content": [{"type": "text", "text": "Yes.", "cache_control": {}}]},
        {"content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": None}]},
        {"content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes."}]},
        {"content": ["Yes."]},
        {"content": [None, {"type": "image_url", "image_url": {}}, "Yes."]},
    ],
)
def test_what_an_answer_has_beside_its_text_is_left_out(noise):
    assert said(**({"content": "Yes."} | noise)) == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": ""}, ""),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": None, "audio": {"id": "a", "transcript": "Hm."}}, "Hm."),
        ({"content": {"type": "text", "text": "Yes."}}, "Yes."),
    ],
)
def test_a_turn_without_text_is_a_turn(fields, text):
    assert said(**fields) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [CALL]},
        {"content": "", "tool_calls": [CALL | {"index": 0, "cache_control": {}, "x": None}]},
        {"content": None, "tool_calls": [{"id": "c1", "name": "f", "args": ARGUMENTS}]},
        {"content": [{"type": "tool_use", "id": "c1", "name": "f", "input": ARGUMENTS}]},
        {
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": ARGUMENTS}],
            "tool_calls": [CALL],
        },
    ],
)
def test_calls_are_read_in_every_shape(message):
    turn = said(**message)
    assert turn["content"] is None
    assert turn["tool_calls"] == [CALL | {"function": {"name": "f", "arguments": ARGUMENTS}}]


@pytest.mark.parametrize("name", ["functions.f", "a" * 100, "größe", "a b", "x/y:z"])
def test_any_name_was_called(name):
    [call] = said(tool_calls=[{"id": "c", "function": {"name": name, "arguments": "{}"}}])[
        "tool_calls"
    ]
    assert call["function"]["name"] == name


def test_the_former_words_for_a_call_and_its_result_are_read():
    call, result = turns(
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"role": "function", "name": "f", "content": "31"},
    )
    [called] = call["tool_calls"]
    assert called["function"] == {"name": "f", "arguments": ARGUMENTS}
    assert result == {
        "role": "tool",
        "name": "f",
        "content": "31",
        "tool_call_id": called["id"],
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([], ""),
        ("x", "x"),
        ({"a": None}, '{"a": null}'),
        ([1, 2], "[1, 2]"),
        (5, "5"),
        (
            [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
            "a\nb",
        ),
        ([{"type": "input_text", "text": "a"}], "a"),
        (
            [{"type": "comment", "text": "a", "by": "bo"}],
            '{"type": "comment", "text": "a", "by": "bo"}',
        ),
        ([{"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}], "[image: not shown]"),
        ({"type": "computer_screenshot", "image_url": "data:"}, "[screenshot: not shown]"),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "a"}]}], "a"),
    ],
)
def test_a_result_is_anything(content, text):
    [_, result] = turns({"role": "assistant", "tool_calls": [CALL]}, RESULT | {"content": content})
    assert result == {"role": "tool", "tool_call_id": "c1", "content": text}


def test_results_find_their_calls_by_id_by_name_or_in_order():
    calls = [{"id": f"c{i}", "function": {"name": f"f{i}"}} for i in range(3)]
    _, *results = turns(
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "name": "f2", "content": "2"},
        {"role": "tool", "content": "0"},
        {"role": "tool", "content": "of none"},
        {"role": "tool", "tool_call_id": "gone", "content": "of one that was trimmed"},
    )
    ids = [result["tool_call_id"] for result in results]
    assert ids[:3] == ["c1", "c2", "c0"]
    assert ids[4] == "gone"
    assert len(set(ids)) == 5


def test_results_in_a_users_turn_are_results():
    parts = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "31"}]},
        {"type": "text", "text": "Thanks."},
    ]
    _, *others = turns(
        {"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": parts}
    )
    assert others == [RESULT, {"role": "user", "content": "Thanks."}]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize(
    "content",
    [None, [], 5, {}, [{"type": "image_url", "image_url": {}}], [{"type": "text", "text": None}]],
)
def test_what_somebody_writes_is_text_or_refused(role, content):
    with pytest.raises(InvalidRequest, match=r"^messages\[1\].content: [^;]*$") as caught:
        turns({"role": role, "content": content})
    assert caught.value.param == "messages[1].content"


# --- templates that are strict --------------------------------------------------------------------


def prompted(layout: Any, *messages: Any) -> list[dict[str, Any]]:
    parsed = read(ChatCompletionRequest, CHAT, messages=[USER, *messages])
    formats = TurnFormats(layout=layout, is_described=False)
    return formats.prompted(turns_of(parsed.messages), [])[0][1:]


def test_ids_of_other_services_are_made_such_as_the_template_takes():
    call, result = prompted(
        MISTRAL,
        {"role": "assistant", "tool_calls": [CALL | {"id": "call_abcdefghijklmnop"}]},
        RESULT | {"tool_call_id": "call_abcdefghijklmnop"},
    )
    [called] = call["tool_calls"]
    assert called["id"] == result["tool_call_id"]
    assert len(called["id"]) == 9
    assert called["id"].isalnum()
    own = prompted(MISTRAL, {"role": "assistant", "tool_calls": [CALL | {"id": "abcDEF123"}]})
    assert own[0]["tool_calls"][0]["id"] == "abcDEF123"


def test_calls_of_one_turn_are_turns_of_their_own_where_the_template_takes_one():
    second = {"id": "c2", "function": {"name": "g", "arguments": "{}"}}
    found = prompted(
        LLAMA3_JSON,
        {"role": "assistant", "content": "Well.", "tool_calls": [CALL, second]},
        RESULT,
        RESULT | {"tool_call_id": "c2", "content": "32"},
        USER,
    )
    assert [turn["role"] for turn in found] == ["assistant", "tool", "assistant", "tool", "user"]
    assert [len(turn["tool_calls"]) for turn in found[::2][:2]] == [1, 1]
    assert [found[1]["content"], found[3]["content"]] == ["31", "32"]
    assert (found[0]["content"], found[2]["content"]) == ("Well.", None)


# --- items of responses ---------------------------------------------------------------------------


def items(*listed: Any) -> list[dict[str, Any]]:
    parsed = read(ResponsesRequest, {"model": "tiny", "input": [USER, *listed, USER]})
    chat = read(ChatCompletionRequest, CHAT, messages=parsed.input)
    return turns_of(chat.messages)[1:-1]


ITEM = {"type": "function_call", "id": "fc_1", "call_id": "c1", **FUNCTION}
OUTPUT = {"type": "function_call_output", "id": "o_1", "call_id": "c1", "output": "31"}
DEEP: list[Any] = reduce(lambda inner, _: [inner], range(900), [])


@pytest.mark.parametrize(
    ("listed", "calls"),
    [
        ([ITEM, OUTPUT], [("f", ARGUMENTS, "31")]),
        (
            [ITEM | {"arguments": '{"city": "Par', "status": "incomplete"}, OUTPUT],
            [("f", {}, "31")],
        ),
        ([{"type": "function_call", "call_id": "c1", "name": "f"}, OUTPUT], [("f", {}, "31")]),
        (
            [
                {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "a"},
            ],
            [("sh", {"input": "ls"}, "a")],
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": DEEP},
                OUTPUT,
            ],
            [("sh", {}, "31")],
        ),
        (
            [
                {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "c1", "output": "a"},
            ],
            [("local_shell", {"command": ["ls"]}, "a")],
        ),
        (
            [{"type": "mcp_call", "id": "m", "name": "q", "arguments": "{}", "output": "a"}],
            [("q", {}, "a")],
        ),
    ],
)
def test_calls_of_every_kind_of_item_are_carried(listed, calls):
    found = items(*listed)
    pairs = zip(found[::2], found[1::2], strict=True)
    read = [
        (call["function"]["name"], call["function"]["arguments"], result["content"])
        for turn, result in pairs
        for call in turn["tool_calls"]
    ]
    assert read == calls
    assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "image_generation_call", "id": "ig_1", "result": "A" * 100},
        {"type": "compaction", "id": "c", "encrypted_content": "x"},
        {"type": "refusal", "refusal": "No."},
        {"type": "mcp_list_tools", "tools": []},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "something_new", "id": "n"},
    ],
)
def test_items_that_say_nothing_are_left_out(item):
    message: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
    }
    message |= {"content": [{"type": "output_text", "text": "Yes."}], "phase": "final_answer"}
    assert items(item, message) == items(message) == [{"role": "assistant", "content": "Yes."}]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "item_reference", "id": "msg_9"}, 'item 1: refers to item "msg_9"'),
        ({"role": "user", "content": [{"type": "input_image"}]}, "item 1: content: part 0"),
        ({"role": "ghost", "content": "x"}, "item 1: role must be one of"),
        (5, "item 1: must be an object"),
    ],
)
def test_what_cannot_be_known_or_shown_is_refused_by_its_place(item, words):
    with pytest.raises(InvalidRequest) as caught:
        items(item)
    assert caught.value.param == "input"
    assert words in caught.value.message
