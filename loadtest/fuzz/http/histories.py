"""Part `histories`: conversations as clients carry them back, and nulls in any place of a body.

A case asks twice: once plainly, and once with noise or with nulls for absent fields. The noise is
fields, parts and items of other services in turns of the assistant and of tools. Both must be
served, with one prompt and one text. Cut or broken arguments stand beside empty ones, which is what
they count as.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

from loadtest.fuzz.cases import Outcome, in_world
from loadtest.fuzz.engines.world import left_tasks
from loadtest.fuzz.http.answers import OVERLOAD
from loadtest.fuzz.http.bodies import MODEL
from loadtest.fuzz.http.world import HttpWorld, http_world, post

_LIMIT_S = 60.0  # limit of one request
_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_TOOL = {"name": "find", "parameters": {"type": "object", "properties": {"a": {"default": None}}}}
_BROKEN = ("", '{"a": "x', "[]", "null", "7", '{"a": }', '"a"', "{" * 99, "\n", '{"a": "\\')
_NOISE: dict[str, tuple[Any, ...]] = {
    "refusal": (None, "No."),
    "annotations": (None, [], [{"type": "url_citation", "url": "x"}]),
    "audio": (None, {"id": "audio_1"}),
    "function_call": (None,),
    "id": ("msg_1", 5, None),
    "status": ("completed", "incomplete", None),
    "phase": ("final_answer", None),
    "cache_control": ({"type": "ephemeral"}, None),
    "provider_specific_fields": ({"a": [1]}, None),
    "reasoning_details": (None, [], [{"type": "reasoning.encrypted", "data": "x"}]),
    "thinking_blocks": (None, [], [{"type": "redacted_thinking", "data": "x"}]),
    "name": (None, 5, ""),
    "images": ([], None),
    "weight": (0, None),
}
_UNREAD_PARTS = (
    {"type": "redacted_thinking", "data": "x"},
    {"type": "image_url", "image_url": {"url": "x"}},
    {"type": "something", "n": 1},
)
_UNREAD_ITEMS: tuple[dict[str, Any], ...] = (
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    {"type": "something_new", "id": "n"},
    {"type": "mcp_list_tools", "tools": []},
)
_NULLS: dict[str, Any] = {
    "stream_options": {"include_usage": None},
    "speculation": {"k": None, "enabled": None},
    "response_format": {"type": "text", "json_schema": None},
    "logit_bias": {"5": None},
    "top_logprobs": 0,
    "seed": None,
    "anything": None,
    "include_reasoning": True,
    "client_metadata": {"a": None},
}


async def _case(seed: int, world: HttpWorld) -> Outcome:
    rng = random.Random(seed)
    before = asyncio.all_tasks()
    outcome = Outcome()
    outcome.counts["cases"] += 1
    for path in (_CHAT, _RESPONSES):
        plain = _chat(rng) if path == _CHAT else _responses(rng)
        for kind, change in (("noisy", _noisy), ("with nulls", _with_nulls)):
            other = change(rng, copy.deepcopy(plain))
            outcome.counts[kind] += 1
            outcome.complaints += await _compared(world, path, plain, other)
    outcome.complaints += await world.left() + await left_tasks(before)
    return outcome


open_histories = in_world(http_world, _case)


async def _compared(
    world: HttpWorld, path: str, plain: dict[str, Any], other: dict[str, Any]
) -> list[str]:
    read = []
    for body in (plain, other):
        answer = await post(world.app, path, body, _LIMIT_S)
        if answer.status in OVERLOAD:
            return []
        if answer.status != 200:
            return [f"{path} {json.dumps(body)[:900]}: {answer.status} {answer.body[:300]!r}"]
        read.append(_told(json.loads(answer.body)))
    if read[0] == read[1]:
        return []
    return [f"{path} {json.dumps(other)[:900]}: {read[1]}, but {read[0]} without the noise"]


def _told(answer: dict[str, Any]) -> tuple[object, ...]:
    """Tokens of the prompt, and the text."""
    usage = answer["usage"]
    if "choices" in answer:
        message = answer["choices"][0]["message"]
        return usage["prompt_tokens"], message["content"]
    texts = [part["text"] for item in answer["output"] for part in item.get("content", ())]
    return usage["input_tokens"], texts


def _settings(rng: random.Random) -> dict[str, Any]:
    return {"model": MODEL, "temperature": 0.9, "seed": rng.randrange(99), "tool_choice": "none"}


def _chat(rng: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    for index in range(rng.randint(1, 3)):
        turn: dict[str, Any] = {"role": "assistant", "content": rng.choice(("b", ""))}
        if rng.random() < 0.6:
            function = {"name": rng.choice(("find", "functions.find")), "arguments": "{}"}
            turn["tool_calls"] = [{"id": f"c{index}", "type": "function", "function": function}]
            messages += [turn, {"role": "tool", "tool_call_id": f"c{index}", "content": "r"}]
        else:
            messages += [turn, {"role": "user", "content": "d"}]
    tools = [{"type": "function", "function": _TOOL}]
    return _settings(rng) | {"messages": messages, "tools": tools, "max_tokens": 4}


def _responses(rng: random.Random) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    for index in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            call = {"type": "function_call", "call_id": f"c{index}", "name": "find"}
            result = {"type": "function_call_output", "call_id": f"c{index}", "output": "r"}
            items += [call | {"arguments": "{}"}, result]
        else:
            items += [{"role": "assistant", "content": "b"}, {"role": "user", "content": "d"}]
    tools = [{"type": "function", **_TOOL}]
    return _settings(rng) | {"input": items, "tools": tools, "max_output_tokens": 4}


def _noisy(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    turns = body.get("messages") or body["input"]
    for turn in turns:
        _break_arguments(rng, turn)
        role = turn.get("role")
        if role == "assistant":
            _roughen(rng, turn)
        if role in ("assistant", "tool") or role is None:
            for name in rng.sample(list(_NOISE), rng.randint(0, 4)):
                if name != "refusal" or turn.get("content"):
                    turn.setdefault(name, rng.choice(_NOISE[name]))
    if "input" in body:
        for item in rng.sample(_UNREAD_ITEMS, rng.randint(0, 3)):
            turns.insert(rng.randint(0, len(turns)), dict(item))
    return body


def _break_arguments(rng: random.Random, turn: dict[str, Any]) -> None:
    functions = [call["function"] for call in turn.get("tool_calls", ())]
    if turn.get("type") == "function_call":
        functions.append(turn)
    for function in functions:
        function["arguments"] = rng.choice(_BROKEN)


def _roughen(rng: random.Random, turn: dict[str, Any]) -> None:
    """Write the same content in another shape."""
    text = turn["content"]
    if not text:
        turn["content"] = rng.choice(("", None, []))
    elif rng.random() < 0.5:
        kind = rng.choice(("text", "output_text"))
        parts = [{"type": kind, "text": text, "annotations": [], "cache_control": None}]
        parts += rng.sample(_UNREAD_PARTS, rng.randint(0, 2))
        rng.shuffle(parts)
        turn["content"] = parts


def _with_nulls(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    names = set(_NULLS) - {"seed"}
    if "input" in body:
        names -= {"response_format", "stream_options"}
        body["reasoning"] = {"effort": None, "summary": None}
        body["text"] = {"format": {"type": "text", "schema": None}, "verbosity": None}
    for name in rng.sample(sorted(names), rng.randint(1, len(names))):
        body[name] = _NULLS[name]
    for tool in body["tools"]:
        inner = rng.choice((tool, tool.get("function", tool)))
        inner[rng.choice(("strict", "description", "cache_control"))] = None
    body["seed"] = float(body["seed"])
    return body
