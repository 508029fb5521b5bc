"""The output items of a response while they grow, and the events that tell of it.

A turn's text, its reasoning and each of its calls are an item of their own. They have the order in
which they come. An answer that is not streamed has the same items; its events are dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

Logprob = msgspec.Raw  # a token's as JSON, because a long answer has a great many
Event = dict[str, Any]
Kind = Literal["message", "reasoning", "function_call"]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class OutputItems:
    """The items of one response.

    Attributes:
        done: items that are over, as answers have them.
    """

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._kind: Kind | None = None  # kind of the item that grows
        self._id = ""
        self._call: dict[str, str] = {}
        self._texts: list[str] = []
        self._logprobs: list[Logprob] = []
        self._events: list[Event] = []

    @property
    def kind(self) -> Kind | None:
        """The kind of the item that grows; None if there is none."""
        return self._kind

    def taken(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def say(self, text: str, logprobs: Sequence[Logprob] = ()) -> None:
        """Continue the message, with tokens of its text if they are requested."""
        self._go_on("message", text, logprobs)

    def think(self, text: str) -> None:
        """Continue the reasoning."""
        self._go_on("reasoning", text)

    def call(self, name: str, new_id: Callable[[], str]) -> None:
        """Begin a call."""
        self.end()
        self._call = {"call_id": new_id(), "name": name}
        self._begin("function_call")

    def argue(self, text: str) -> None:
        """Continue the call's arguments."""
        self._add(text)

    def end(self, status: Literal["completed", "incomplete"] = "completed") -> None:
        """End the item that grows."""
        kind, text = self._kind, "".join(self._texts)
        if kind is None:
            return
        field = "arguments" if kind == "function_call" else "text"
        self._tell(f"{_DELTAS[kind]}.done", **self._place(kind), **{field: text})
        if kind == "message":
            self._events[-1]["logprobs"] = self._logprobs
        if kind == "function_call":
            self._events[-1]["name"] = self._call["name"]
        else:
            part = self._part(kind, text)
            self._tell("response.content_part.done", **self._place(kind), part=part)
        item = self._item(kind, text, status)
        self._tell("response.output_item.done", output_index=len(self.done), item=item)
        self.done.append(item)
        self._kind, self._texts, self._logprobs = None, [], []

    def _go_on(self, kind: Kind, text: str, logprobs: Sequence[Logprob] = ()) -> None:
        if self._kind != kind:
            self.end()
            self._begin(kind)
        if text or logprobs:
            self._add(text, logprobs)

    def _begin(self, kind: Kind) -> None:
        self._kind, self._id = kind, f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        item = self._item(kind, None, "in_progress")
        self._tell("response.output_item.added", output_index=len(self.done), item=item)
        if kind != "function_call":
            part = self._part(kind, "")
            self._tell("response.content_part.added", **self._place(kind), part=part)

    def _add(self, text: str, logprobs: Sequence[Logprob] = ()) -> None:
        kind = self._kind
        assert kind is not None, "no item to add to"
        self._texts.append(text)
        self._logprobs += logprobs
        self._tell(f"{_DELTAS[kind]}.delta", **self._place(kind), delta=text)
        if kind == "message":
            self._events[-1]["logprobs"] = list(logprobs)

    def _place(self, kind: Kind) -> Event:
        place: Event = {"item_id": self._id, "output_index": len(self.done)}
        return place if kind == "function_call" else place | {"content_index": 0}

    def _item(self, kind: Kind, text: str | None, status: str) -> dict[str, Any]:
        """Return the item; `text` None: it has only begun."""
        item: dict[str, Any] = {"id": self._id, "type": kind, "status": status}
        content = [] if text is None else [self._part(kind, text)]
        match kind:
            case "message":
                return item | {"role": "assistant", "content": content}
            case "reasoning":
                return item | {"summary": [], "content": content}
        return item | self._call | {"arguments": text or ""}

    def _part(self, kind: Kind, text: str) -> Event:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = list(self._logprobs)  # as it stands: more may come before it is encoded
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _tell(self, what: str, **fields: Any) -> None:
        self._events.append({"type": what, **fields})
