"""Bodies and events of POST /v1/responses.

Events carry their type in an `event:` line too and are numbered; there is no `[DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from deployments.api.responses.output import Event, Logprob, OutputItems
from deployments.api.responses.shapes import (
    ResponsesAnswer,
    ResponsesRequest,
    ResponsesUsage,
    RunningResponse,
)
from deployments.api.schemas.answers import metrics_of, usage_of
from deployments.api.schemas.logprobs import TokenNames, chat_logprob
from deployments.api.writing.writers import AnswerHead, Writer
from models.text.tools.reader import ArgumentsPart, CallBegun, Said, Thought, TurnReader
from models.text.tools.turn import Turn
from router.types import Delta, Finished, ShownToken

_encoder = msgspec.json.Encoder()
_TYPE = b'{"type":"'


def encode_named_events(bodies: Iterable[bytes]) -> bytes:
    """Encode each JSON body as an event, named by the `type` that it begins with."""
    return b"".join(b"event: " + _type(body) + b"\ndata: " + body + b"\n\n" for body in bodies)


def _type(body: bytes) -> bytes:
    assert body.startswith(_TYPE), body[:40]
    return body[len(_TYPE) : body.index(b'"', len(_TYPE))]


class ResponsesWriter(Writer):
    """Writes the answer of POST /v1/responses.

    Args:
        head: of the answer.
        asked: the request, much of which an answer repeats.
        turn: what the answer may be; None: text as it comes.
    """

    def __init__(self, head: AnswerHead, asked: ResponsesRequest, turn: Turn | None) -> None:
        super().__init__(head)
        self._asked = asked
        self._turn = turn
        self._reader = None if turn is None else TurnReader(turn)
        self._items = OutputItems()
        self._num_events = 0
        self._num_thought = 0  # tokens of reasoning
        self._num_uncounted = 0  # tokens that no text has come with yet
        self._names = TokenNames(head.tokenizer)
        self._unsaid: list[Logprob] = []  # for tokens that no text has come with yet

    async def add(self, index: int, delta: Delta) -> None:
        """See `Writer`."""
        self._take(delta)
        self._items.taken()

    def whole(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        self._end(ends[0])
        return [self._response(ends[0]).to_json()]

    def opening(self) -> list[bytes]:
        """See `Writer`."""
        response = self._response()
        return self._encoded(
            [
                {"type": "response.created", "response": response},
                {"type": "response.in_progress", "response": response},
            ]
        )

    async def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`."""
        self._take(delta)
        return self._encoded(self._items.taken())

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        self._end(finished)
        response = self._response(finished)
        last = {"type": f"response.{response.status}", "response": response}
        return self._encoded([*self._items.taken(), last])

    def failed(self, body: bytes) -> bytes:
        """Return the event for an error's body; OpenAI's clients raise its `error`."""
        error = msgspec.json.decode(body)["error"]
        said = {name: error[name] for name in ("code", "message", "param")}
        return self._encoded([{"type": "error", **said, "error": error}])[0]

    def _take(self, delta: Delta) -> None:
        if self._reader is None:
            self._note(delta.shown)
            if delta.text:
                self._items.say(delta.text, self._said())
            return
        before = self._reader.num_reasoning_chars
        pieces = self._reader.push(delta.text)
        self._count_thought(delta, self._reader.num_reasoning_chars - before)
        if any(isinstance(piece, Thought) for piece in pieces):
            self._unsaid.clear()
        self._note([one for one in delta.shown if one.offset >= self._reader.num_reasoning_chars])
        self._add(pieces)

    def _note(self, shown: Iterable[ShownToken]) -> None:
        """Keep the logprobs of tokens for the text that comes with them."""
        if self.head.num_logprobs >= 0:
            entries = (chat_logprob(token, self._names) for token in shown)
            self._unsaid += [msgspec.Raw(_encoder.encode(entry)) for entry in entries]

    def _count_thought(self, delta: Delta, num_chars: int) -> None:
        """Count the tokens of reasoning, by their share of the delta's characters."""
        self._num_uncounted += len(delta.token_ids)
        if delta.text:
            share = min(num_chars / len(delta.text), 1.0)
            self._num_thought += round(self._num_uncounted * share)
            self._num_uncounted = 0

    def _add(self, pieces: Iterable[Said | Thought | CallBegun | ArgumentsPart]) -> None:
        items = self._items
        for piece in pieces:
            if isinstance(piece, CallBegun | ArgumentsPart):
                self._unsaid.clear()  # a message has the tokens that came with its text
            match piece:
                case Said():
                    items.say(piece.text, self._said())
                case Thought():
                    items.think(piece.text)
                case CallBegun():
                    assert self._turn is not None
                    items.call(piece.name, self._turn.layout.new_id)
                case ArgumentsPart():
                    items.argue(piece.text)

    def _end(self, finished: Finished) -> None:
        if self._reader is not None:
            self._add(self._reader.end())
        is_empty = not self._items.done and self._items.kind is None
        if is_empty or (self._unsaid and self._items.kind == "message"):
            self._items.say("", self._said())  # an answer without text is still a message
        self._items.end("incomplete" if finished.finish_reason == "length" else "completed")

    def _said(self) -> list[Logprob]:
        said, self._unsaid = self._unsaid, []
        return said

    def _encoded(self, events: Iterable[Event]) -> list[bytes]:
        bodies = []
        for event in events:
            bodies.append(_encoder.encode({**event, "sequence_number": self._num_events}))
            self._num_events += 1
        return bodies

    def _response(self, finished: Finished | None = None) -> RunningResponse:
        """Return the response so far; before the end it has no output and usage."""
        asked, head, choice = self._asked, self.head, self._asked.tool_choice
        is_cut = finished is not None and finished.finish_reason == "length"
        status = "in_progress" if finished is None else "incomplete" if is_cut else "completed"
        fields: dict[str, Any] = {
            "id": head.id,
            "created_at": head.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": asked.model,
            "output": list(self._items.done),
            "parallel_tool_calls": asked.parallel_tool_calls,
            "reasoning": {"effort": asked.reasoning.effort, "summary": None},
            "temperature": asked.temperature,
            "text": asked.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in asked.tools],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": asked.truncation,
        }
        if finished is None:
            return RunningResponse(**fields)
        metrics = metrics_of(finished)
        if asked.other_tools:
            metrics.tools_left_out = [kind for _, kind in asked.other_tools]
        usage = self._usage(finished)
        return ResponsesAnswer(**fields, usage=usage, seed=head.seed, metrics=metrics)

    def _usage(self, finished: Finished) -> ResponsesUsage:
        counted = usage_of(finished)
        cached = counted.prompt_tokens_details.cached_tokens
        return ResponsesUsage(
            input_tokens=counted.prompt_tokens,
            input_tokens_details={"cached_tokens": cached, "cache_write_tokens": 0},
            output_tokens=counted.completion_tokens,
            output_tokens_details={"reasoning_tokens": self._num_thought},
            total_tokens=counted.total_tokens,
            lookahead=counted.lookahead,
        )
