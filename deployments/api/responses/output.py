"""The output items of a response while they grow, and the events that tell of it.

A turn's text, its reasoning and each of its calls are an item of their own, in the order in which
they come. An answer that is not streamed has the same items; its events are dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

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
        self._kind: Kind | None = None  # of the item that grows
        self._id = ""
        self._call: dict[str, str] = {}
        self._texts: list[str] = []
        self._events: list[Event] = []

    @property
    def kind(self) -> Kind | None:
        """What the item that grows is; None: none does."""
        return self._kind

    def taken(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def say(self, text: str) -> None:
        """The message goes on."""
        self._go_on("message", text)

    def think(self, text: str) -> None:
        """The reasoning goes on."""
        self._go_on("reasoning", text)

    def call(self, name: str, new_id: Callable[[], str]) -> None:
        """A call begins."""
        self.end()
        self._call = {"call_id": new_id(), "name": name}
        self._begin("function_call")

    def argue(self, text: str) -> None:
        """The call's arguments go on."""
        self._add(text)

    def end(self, status: Literal["completed", "incomplete"] = "completed") -> None:
        """The item that grows is over."""
        kind, text = self._kind, "".join(self._texts)
        if kind is None:
            return
        field = "arguments" if kind == "function_call" else "text"
        self._tell(f"{_DELTAS[kind]}.done", **self._place(kind), **{field: text})
        if kind == "function_call":
            self._events[-1]["name"] = self._call["name"]
        else:
            self._tell("response.content_part.done", **self._place(kind), part=_part(kind, text))
        item = self._item(kind, text, status)
        self._tell("response.output_item.done", output_index=len(self.done), item=item)
        self.done.append(item)
        self._kind, self._texts = None, []

    def _go_on(self, kind: Kind, text: str) -> None:
        if self._kind != kind:
            self.end()
            self._begin(kind)
        if text:
            self._add(text)

    def _begin(self, kind: Kind) -> None:
        self._kind, self._id = kind, f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        item = self._item(kind, None, "in_progress")
        self._tell("response.output_item.added", output_index=len(self.done), item=item)
        if kind != "function_call":
            self._tell("response.content_part.added", **self._place(kind), part=_part(kind, ""))

    def _add(self, text: str) -> None:
        kind = self._kind
        assert kind is not None, "no item to add to"
        self._texts.append(text)
        self._tell(f"{_DELTAS[kind]}.delta", **self._place(kind), delta=text)

    def _place(self, kind: Kind) -> Event:
        place: Event = {"item_id": self._id, "output_index": len(self.done)}
        return place if kind == "function_call" else place | {"content_index": 0}

    def _item(self, kind: Kind, text: str | None, status: str) -> dict[str, Any]:
        """The item; `text` None: it has only begun."""
        item: dict[str, Any] = {"id": self._id, "type": kind, "status": status}
        content = [] if text is None else [_part(kind, text)]
        match kind:
            case "message":
                return item | {"role": "assistant", "content": content}
            case "reasoning":
                return item | {"summary": [], "content": content}
        return item | self._call | {"arguments": text or ""}

    def _tell(self, what: str, **fields: Any) -> None:
        if what.startswith("response.output_text"):
            fields["logprobs"] = []
        self._events.append({"type": what, **fields})


def _part(kind: Kind, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
