import json
import random

import jsonschema
import pytest

from models.demo.data.chat import Conversation
from models.demo.data.code import make_code
from models.demo.data.tool_calls import make_tool_call, make_unneeded_tools
from models.demo.data.words import Pools


def functions_of(chat: Conversation) -> dict[str, dict[str, object]]:
    lines = chat.turns[0][1].split("You can call these functions:\n")[1].split("\nTo call one")[0]
    functions = [json.loads(line) for line in lines.split("\n")]
    return {function["name"]: function["parameters"] for function in functions}


def calls_of(chat: Conversation) -> list[dict[str, object]]:
    turn = next(text for role, text in chat.turns if role == "assistant")
    return [json.loads(line) for line in turn.split("\n")]


@pytest.mark.parametrize("seed", range(50))
def test_calls_are_of_described_functions_and_validate(seed: int, pools: Pools) -> None:
    chat = make_tool_call(random.Random(seed), pools)
    schemas = functions_of(chat)
    for call in calls_of(chat):
        assert list(call) == ["name", "arguments"]
        jsonschema.validate(call["arguments"], schemas[str(call["name"])])


def test_words_of_arguments_are_copied_from_the_request(pools: Pools) -> None:
    chats = [make_tool_call(random.Random(seed), pools) for seed in range(200)]
    weather = [
        (chat, call) for chat in chats for call in calls_of(chat) if "weather" in str(call["name"])
    ]
    assert len(weather) > 10
    for chat, call in weather:
        request = next(text for role, text in chat.turns if role == "user")
        assert all(str(value) in request for value in call["arguments"].values())  # type: ignore[attr-defined]


def test_some_conversations_end_with_what_a_result_says(pools: Pools) -> None:
    chats = [make_tool_call(random.Random(seed), pools) for seed in range(200)]
    said = [chat for chat in chats if not chat.answer.startswith('{"name": ')]
    assert 20 < len(said) < 100
    assert all(" returned: " in chat.turns[-2][1] for chat in said)


def test_a_function_that_is_not_needed_leaves_the_answer_as_it_is(pools: Pools) -> None:
    rng = random.Random(5)
    code = make_code(rng, pools)
    chat = make_unneeded_tools(rng, pools, code)
    assert chat.turns[0][0] == "system"
    assert functions_of(chat)
    assert chat.turns[1:] == code.turns
