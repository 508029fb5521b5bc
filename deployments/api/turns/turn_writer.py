"""One choice's turn as OpenAI writes it: content, reasoning, calls with ids, the finish reason."""

from __future__ import annotations

from msgspec import UNSET

from deployments.api.schemas.answers import (
    AssistantMessage,
    CalledFunction,
    ChatDelta,
    ChatFinishReason,
    ToolCall,
    ToolCallDelta,
)
from models.text.tools.reader import ArgumentsPart, CallBegun, Piece, Said, Thought, TurnReader
from models.text.tools.turn import Turn
from router.types import FinishReason


class TurnWriter:
    """Writes one turn, whole or delta by delta.

    Args:
        turn: what it may be; None: text as it comes.
    """

    def __init__(self, turn: Turn | None) -> None:
        self._turn = turn
        self._reader = None if turn is None else TurnReader(turn)
        # State of an answer that is not streamed:
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []  # names and arguments

    def add(self, text: str) -> None:
        """Take further text of an answer that is not streamed."""
        if self._reader is None:
            self._said.append(text)
        else:
            self._take(self._reader.push(text))

    def message(self) -> AssistantMessage:
        """Return the whole message."""
        if self._reader is None:
            return AssistantMessage(content="".join(self._said))
        self._take(self._reader.end())
        content = "".join(self._said) or (None if self._calls else "")
        reasoning = "".join(self._thought)
        calls = [
            ToolCall(
                id=self._new_id(), function=CalledFunction(name=name, arguments="".join(parts))
            )
            for name, parts in self._calls
        ]
        return AssistantMessage(
            content=content, reasoning_content=reasoning or UNSET, tool_calls=calls or UNSET
        )

    def first_delta(self) -> ChatDelta:
        """Return the beginning of a stream.

        A turn of calls has no content, as in OpenAI's API.
        """
        is_calls = self._turn is not None and self._turn.must_call
        return {"role": "assistant", "content": None if is_calls else ""}

    def deltas(self, text: str) -> list[ChatDelta]:
        """Return the additions to the message for further text of a stream."""
        if self._reader is None:
            return [{"content": text}] if text else []
        return self._joined(self._reader.push(text))

    def last_deltas(self) -> list[ChatDelta]:
        """Return the deltas held back until the stream's end."""
        return [] if self._reader is None else self._joined(self._reader.end())

    def finish_reason(self, reason: FinishReason) -> ChatFinishReason:
        """Why the turn ended, to be asked at its end."""
        has_calls = self._reader is not None and self._reader.num_calls > 0
        return "tool_calls" if has_calls and reason == "stop" else reason

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Said():
                    self._said.append(piece.text)
                case Thought():
                    self._thought.append(piece.text)
                case CallBegun():
                    self._calls.append((piece.name, []))
                case ArgumentsPart():
                    self._calls[piece.index][1].append(piece.text)

    def _joined(self, pieces: list[Piece]) -> list[ChatDelta]:
        """Join pieces to one delta for each run of text, of reasoning, or of one call."""
        deltas: list[ChatDelta] = []
        for piece in pieces:
            last = deltas[-1] if deltas else {}
            match piece:
                case Said():
                    deltas.append({"content": piece.text})
                case Thought():
                    deltas.append({"reasoning_content": piece.text})
                case CallBegun():
                    deltas.append({"tool_calls": [self._begun(piece)]})
                case ArgumentsPart() if "tool_calls" in last:
                    last["tool_calls"][0]["function"]["arguments"] += piece.text
                case ArgumentsPart():
                    part: ToolCallDelta = {
                        "index": piece.index,
                        "function": {"arguments": piece.text},
                    }
                    deltas.append({"tool_calls": [part]})
        return deltas

    def _begun(self, call: CallBegun) -> ToolCallDelta:
        return {
            "index": call.index,
            "id": self._new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }

    def _new_id(self) -> str:
        assert self._turn is not None
        return self._turn.layout.new_id()
