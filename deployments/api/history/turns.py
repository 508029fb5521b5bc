"""Turns the messages of a request into the turns that a chat template is given.

Results find their calls by the id or, if that is missing, by the name or the order. A result whose
call is no longer in the conversation stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.api.history.calls import CarriedCall
from deployments.api.history.message import Message

Turn = dict[str, Any]


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Convert the messages for templates."""
    book = _Calls()
    turns: list[Turn] = []
    for message in messages:
        if message.role in ("tool", "function"):
            turns.append(book.result(message.tool_call_id, message.name, message.content))
            continue
        turns += [book.result(result.call_id, None, result.text) for result in message.results]
        if message.content is not None or not message.results:
            turns.append(_turn(message, book))
    return turns


class _Calls:
    """The calls of a conversation and which of them have no result yet."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}  # names by ids
        self._num_made = 0

    def call(self, call: CarriedCall) -> Turn:
        """Convert a call for templates."""
        call_id = self._new_id() if call.id is None else call.id
        self._open[call_id] = call.name
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call_id, "type": "function", "function": function}

    def result(self, call_id: str | None, name: str | None, text: str | None) -> Turn:
        """Convert a result for templates."""
        if call_id is None:
            named = (one for one, called in self._open.items() if called == name)
            call_id = next(named, None) or next(iter(self._open), None) or self._new_id()
        self._open.pop(call_id, None)
        turn = {"role": "tool", "content": text or "", "tool_call_id": call_id}
        return turn if name is None else turn | {"name": name}

    def _new_id(self) -> str:
        self._num_made += 1
        return f"call_{self._num_made}"


def _turn(message: Message, book: _Calls) -> Turn:
    turn: Turn = {"role": message.role, "content": message.content or ""}
    if message.role == "developer":
        turn["role"] = "system"
    if message.tool_calls:
        turn["content"] = message.content or None  # by which some templates know a turn with calls
        turn["tool_calls"] = [book.call(call) for call in message.tool_calls]
    for name in ("name", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            turn[name] = value
    return turn
