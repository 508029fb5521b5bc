"""Items of a conversation as the Responses API has them, and the messages that they are.

Items are carried back as services wrote them, of kinds that this one never writes. Calls of any
kind and their results become turns; what says nothing to a model is left out. Only the user's text
or the instructions can be wrong. References to a stored item are wrong too, because nothing is
stored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from deployments.api.history.calls import id_of, read_call
from deployments.api.history.content import thought_in, written_text
from deployments.api.history.message import ROLES
from deployments.api.schemas.strict_fields import refuse_value, shown

MAX_ITEMS = 4096
_CALL, _OUTPUT = "_call", "_output"
# Tools that ran in another server have no result for the model to read but this one.
_WITH_RESULT = "mcp_call"
_ALWAYS_CALLS = ("function_call", "custom_tool_call", _WITH_RESULT)

Item = dict[str, Any]


def _messages(content: Any) -> list[Item]:
    """Convert a text or a list of items to the messages of chat completions."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    if not isinstance(content, list) or not content:
        refuse_value("must be a string or a non-empty list of items")
    if len(content) > MAX_ITEMS:
        refuse_value(f"at most {MAX_ITEMS} items are allowed (got {len(content)})")
    ids = {item["id"] for item in content if _has_content(item)}
    turns = _Turns()
    for index, item in enumerate(content):
        if not isinstance(item, dict):
            refuse_value(f"item {index}: must be an object (got {shown(item)})")
        if item.get("type") == "item_reference":
            _check_reference(item, index, ids)
        else:
            turns.add(item, index)
    if not turns.messages:
        refuse_value("must hold a message")
    return turns.messages


def _has_content(item: Any) -> bool:
    """Return whether it is an item with an id, and not a mere reference to one."""
    return (
        isinstance(item, dict)
        and isinstance(item.get("id"), str)
        and item.get("type") != "item_reference"
    )


def _check_reference(item: Item, index: int, ids: set[str]) -> None:
    if item.get("id") not in ids:
        refuse_value(
            f"item {index}: refers to item {shown(item.get('id'))}, which is not in the input, "
            "and nothing is stored here; send the item itself"
        )


class _Turns:
    """Gathers messages; calls that follow each other, with text or reasoning before them, are one
    turn."""

    def __init__(self) -> None:
        self.messages: list[Item] = []
        self._thought = ""

    def add(self, item: Item, index: int) -> None:
        """Take in the next item."""
        kind = str(item.get("type") or "message")
        if kind == "message" or (item.get("role") in ROLES and "content" in item):
            self._say(item, index)
        elif kind == "reasoning":
            self._thought += thought_in(item.get("content"))
        elif kind.endswith(_CALL) and (kind in _ALWAYS_CALLS or "call_id" in item):
            self._call(item, kind)
        elif kind.endswith(_OUTPUT):
            self._result(item, item.get("output"))

    def _say(self, item: Item, index: int) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ROLES:
            known = ", ".join(ROLES)
            refuse_value(f"item {index}: role must be one of {known} (got {shown(role)})")
        if role in ("user", "system", "developer"):
            content = written_text(content, where=f"item {index}: content: ")
        message = {**item, "content": content}
        if role == "assistant" and self._thought:
            message["reasoning_content"] = self._thought
        self._thought = ""
        self.messages.append(message)

    def _call(self, item: Item, kind: str) -> None:
        call = read_call(item, kind.removesuffix(_CALL))
        assert call is not None, "a call with a name of its own is read"
        turn = self._turn_of_calls()
        turn["tool_calls"].append(
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        )
        results = (item.get("output"), item.get("error"))
        if kind == _WITH_RESULT and (result := next(filter(None, results), None)) is not None:
            self._result(item, result)

    def _turn_of_calls(self) -> Item:
        """Return the assistant's turn that a call belongs to."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._thought:
            self.messages.append({"role": "assistant", "content": None})
            if self._thought:
                self.messages[-1]["reasoning_content"] = self._thought
            self._thought = ""
        turn = self.messages[-1]
        if not isinstance(turn.get("tool_calls"), list):
            turn["tool_calls"] = []
        return turn

    def _result(self, item: Item, content: Any) -> None:
        self.messages.append({"role": "tool", "tool_call_id": id_of(item), "content": content})


_ItemIn = dict[str, Any]
Items = Annotated[list[Item], PlainValidator(_messages, json_schema_input_type=str | list[_ItemIn])]
