"""Items of a conversation as the Responses API has them, and the messages that they are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from deployments.api.schemas.strict_fields import refuse_value, shown

MAX_ITEMS = 4096
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = ("user", "assistant", "system", "developer")
# Beside what is read of each: how the server wrote them, which says nothing to the model.
_FIELDS = {
    "message": {"role", "content", "name", "phase"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "reasoning": {"content", "summary", "encrypted_content"},
}
_OF_ANY = {"type", "id", "status"}


def _messages(content: Any) -> list[dict[str, Any]]:
    """The messages of a text or of a list of items, as chat completions have them.

    Calls that follow each other, with text or reasoning before them, are one turn.
    """
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    if not isinstance(content, list) or not content:
        refuse_value("must be a string or a non-empty list of items")
    if len(content) > MAX_ITEMS:
        refuse_value(f"at most {MAX_ITEMS} items are allowed (got {len(content)})")
    messages: list[dict[str, Any]] = []
    thought = ""
    for index, item in enumerate(content):
        kind = _kind(item, index)
        if kind == "reasoning":
            thought += _text(item.get("content") or [], f"item {index}: content")
        elif kind == "function_call":
            turn = _turn_of_calls(messages, thought)
            turn["tool_calls"].append(_call(item))
            thought = ""
        elif kind == "function_call_output":
            output = _text(item.get("output"), f"item {index}: output")
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        else:
            messages.append(_message(item, index, thought))
            thought = ""
    if not messages:
        refuse_value("must hold a message")
    return messages


def _kind(item: Any, index: int) -> str:
    if not isinstance(item, dict):
        refuse_value(f"item {index}: must be an object (got {shown(item)})")
    kind = item.get("type") or "message"
    if kind not in _FIELDS:
        refuse_value(f"item {index}: type {shown(kind)} is not supported")
    for name, value in item.items():
        if value not in (None, []) and name not in _FIELDS[kind] | _OF_ANY:
            refuse_value(f"item {index}: unknown field {shown(name)}")
    return str(kind)


def _message(item: dict[str, Any], index: int, thought: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        refuse_value(f"item {index}: role must be one of {', '.join(_ROLES)} (got {shown(role)})")
    text = _text(item.get("content"), f"item {index}: content")
    message = {"role": role, "content": text}
    if thought and role == "assistant":
        message["reasoning_content"] = thought
    return message


def _turn_of_calls(messages: list[dict[str, Any]], thought: str) -> dict[str, Any]:
    """The assistant's turn that a call belongs to."""
    if messages and messages[-1]["role"] == "assistant" and not thought:
        turn = messages[-1]
        turn.setdefault("tool_calls", [])
        return turn
    turn = {"role": "assistant", "content": None, "tool_calls": []}
    if thought:
        turn["reasoning_content"] = thought
    messages.append(turn)
    return turn


def _call(item: dict[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse_value(f"{where} must be a string or a list of text parts")
    if len(content) > MAX_ITEMS:
        refuse_value(f"{where}: at most {MAX_ITEMS} parts are allowed (got {len(content)})")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            refuse_value(f"{where}: part {index}: type {shown(kind)} is not supported")
        if not isinstance(part.get("text"), str):
            refuse_value(f"{where}: part {index}: text must be a string")
        texts.append(part["text"])
    return "\n".join(texts)


_ItemIn = dict[str, Any]
Items = Annotated[
    list[dict[str, Any]], PlainValidator(_messages, json_schema_input_type=str | list[_ItemIn])
]
