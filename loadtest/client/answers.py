"""One answer, streamed or whole: read line by line, timed, and checked against what it must be.

Knows no HTTP client: it is fed lines and clock readings. So locust's users, httpx's senders
(`client.http`) and the tests share one reader and one check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from deployments.streams import KnownIds, add_ids
from loadtest.client.workload import Asking

_DONE = "[DONE]"
_PREFIX = "data: "
_ID = "id: "
_KEPT_CHARACTERS = 500  # characters of an HTTP error's body


@dataclass
class Answer:
    """Holds what has come of one request so far. Times in seconds by its feeder's clock.

    Attributes:
        began_s, ended_s: when the request was sent and when the last of its answer had come.
        first_text_s, last_text_s: when text came first and last; None: none did.
        num_completion_tokens, num_prompt_tokens, num_cached_tokens: by the usage event; 0 where
            there was none. The last are those of the prompt that the target had already.
        speculation: the last event's `metrics.speculative_decoding`.
        reasoning: what a model that thinks has thought, where the server tells it apart.
        logprobs: of the choice, in the blocks in which they came and the route's own shape.
        details: the last event's `speculation_details`, an entry for each of its choices.
        status: of the HTTP answer; 0 when there was none.
        content: the body of an HTTP error.
        retry_after_s: its Retry-After, where that is whole seconds of at least 1.
        error: why there is no answer: the HTTP error, the error event or the connection's.
        is_done: the stream came to its end.
        last_id: of the last event that had an id; a broken stream goes on behind it.
        num_breaks: times that the stream broke and went on.
        known_ids: of the tokens up to the last id, where the service tells them.
    """

    text: str = ""
    finish_reason: str | None = None
    began_s: float = 0.0
    ended_s: float = 0.0
    first_text_s: float | None = None
    last_text_s: float | None = None
    num_completion_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    speculation: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    content: str = ""
    retry_after_s: float | None = None
    error: str = ""
    is_done: bool = False
    last_id: str = ""
    num_breaks: int = 0
    known_ids: KnownIds = field(default_factory=dict)
    _marked: tuple[int, int, int] = (0, 0, 0)  # of text, reasoning and logprobs at the last id
    _new_ids: KnownIds = field(default_factory=dict)  # since the last id

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted for this answer, as the service reports it."""
        return int(self.speculation.get("num_draft_tokens", 0))

    def take(self, line: str, now_s: float) -> bool:
        """Take in one line of the event stream; return whether it held an event but the end.

        Raises:
            ValueError: the event is no JSON.
        """
        if line.startswith(_ID):
            self.last_id = line.removeprefix(_ID)
            self._marked = len(self.text), len(self.reasoning), len(self.logprobs)
            for index, ids in self._new_ids.items():
                self.known_ids.setdefault(index, []).extend(ids)
            self._new_ids = {}
        if not line.startswith(_PREFIX):
            return False
        data = line.removeprefix(_PREFIX)
        if data == _DONE:
            self.is_done = True
            return False
        self._take_event(data, now_s)
        return True

    def take_whole(self, content: str, now_s: float) -> None:
        """Take in the body of an answer that is not streamed.

        Raises:
            ValueError: it is no JSON.
        """
        self._take_event(content, now_s)
        self.is_done = True

    def refuse(self, status: int, content: str, retry_after: str = "") -> None:
        """Take in an HTTP status other than 200 with its body and its Retry-After header."""
        self.status, self.content = status, content
        self.error = f"HTTP {status}: {content[:_KEPT_CHARACTERS]}"
        if retry_after.isdecimal() and int(retry_after) >= 1:
            self.retry_after_s = float(retry_after)

    def go_on(self) -> None:
        """Forget what came behind the last id, and why the stream broke: it comes again."""
        num_text, num_reasoning, num_logprobs = self._marked
        self.text, self.reasoning = self.text[:num_text], self.reasoning[:num_reasoning]
        del self.logprobs[num_logprobs:]
        self._new_ids = {}
        self.error = self.content = ""
        self.status, self.retry_after_s = 0, None
        self.num_breaks += 1

    def figures(self) -> dict[str, float]:
        """Return what locust's table shows next to the whole time, with units in the names."""
        figures: dict[str, float] = {}
        if self.first_text_s is not None and self.last_text_s is not None:
            figures["TTFT, ms"] = (self.first_text_s - self.began_s) * 1e3
            num_later = self.num_completion_tokens - 1
            if num_later > 0:
                gap_s = (self.last_text_s - self.first_text_s) / num_later
                figures["inter-token latency, ms"] = gap_s * 1e3
                whole_s = self.last_text_s - self.began_s
                figures["tokens/s"] = self.num_completion_tokens / max(whole_s, 1e-9)
        if self.speculation.get("num_spec_steps"):
            figures["acceptance, %"] = 100 * self.speculation["draft_acceptance_rate"]
        return figures

    def _take_event(self, data: str, now_s: float) -> None:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event that is no object: {data[:_KEPT_CHARACTERS]}")
        if event.get("error"):
            self.error = f"error event: {data[:_KEPT_CHARACTERS]}"
            return
        add_ids(self._new_ids, event)
        for choice in event.get("choices") or ():
            self._add_text(choice, now_s)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if choice.get("logprobs"):
                self.logprobs.append(choice["logprobs"])
        if usage := event.get("usage"):
            self.num_completion_tokens = int(usage.get("completion_tokens", 0))
            self.num_prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get(
                "cached_tokens", 0
            )
        metrics = event.get("metrics") or {}
        self.speculation = metrics.get("speculative_decoding") or self.speculation
        self.details = event.get("speculation_details") or self.details

    def _add_text(self, choice: Mapping[str, Any], now_s: float) -> None:
        """Add the text of a choice: a chat has it in a message, a completion in the choice."""
        message = choice.get("delta") or choice.get("message") or {}
        self.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
        text = message.get("content") or choice.get("text")
        if text:
            self.text += text
            self.first_text_s = now_s if self.first_text_s is None else self.first_text_s
            self.last_text_s = now_s


def check_answer(
    answer: Answer, *, schema: Mapping[str, Any] | None = None, known: Answer | None = None
) -> str:
    """Return why an answer is wrong, or "" when it is right.

    Args:
        answer: what came.
        schema: its text must be JSON that validates; None: any text.
        known: an answer to the same request, whose text and end it must have; None: any.
    """
    if answer.error:
        return answer.error
    if not answer.is_done or answer.finish_reason is None:
        return f"the stream was cut after {len(answer.text)} characters, without an end"
    if known is not None and (known.text, known.finish_reason) != (
        answer.text,
        answer.finish_reason,
    ):
        return f"another text for the same seed: {_first_difference(known, answer)}"
    return "" if schema is None else _check_json(answer, schema)


def check_refusal(answer: Answer, bad_field: str) -> str:
    """Return why this is not the 400 that a request with a wrong `bad_field` must get, or ""."""
    if answer.status != 400:
        return f"status {answer.status} for a bad {bad_field}, not 400"
    try:
        param = json.loads(answer.content)["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return f"an error that is not OpenAI's: {answer.content[:80]!r}"
    if not str(param).startswith(bad_field):
        return f"the error names {param!r}, not {bad_field!r}"
    return ""


def check_asked(
    asking: Asking, answer: Answer, known: MutableMapping[str, Answer] | None = None
) -> str:
    """Return why the answer to a request of the workload is wrong, or "".

    `known` holds the first right answer to every request and gets this one. None: a request may
    have another text each time. An answer that its reader left is wrong only if it has an error.
    """
    request = asking.request
    if request.bad_field is not None:
        return check_refusal(answer, request.bad_field)
    if asking.leave_after is not None:
        return answer.error
    earlier = None if known is None else known.get(request.key)
    problem = check_answer(answer, schema=request.schema, known=earlier)
    if known is not None and not problem:
        known.setdefault(request.key, answer)
    return problem


def _check_json(answer: Answer, schema: Mapping[str, Any]) -> str:
    if answer.finish_reason != "stop":
        return f"ended by {answer.finish_reason!r} before its JSON did: {answer.text[-80:]!r}"
    try:
        jsonschema.validate(json.loads(answer.text), schema)
    except ValueError:
        return f"not JSON: {answer.text[:200]!r}"
    except jsonschema.ValidationError as error:
        return f"JSON outside its schema: {error.message[:120]}: {answer.text[:200]!r}"
    return ""


def _first_difference(known: Answer, answer: Answer) -> str:
    if known.text == answer.text:
        return f"finish_reason {answer.finish_reason!r} for {known.finish_reason!r}"
    at = next(
        (i for i, (a, b) in enumerate(zip(known.text, answer.text, strict=False)) if a != b),
        min(len(known.text), len(answer.text)),
    )
    start = max(0, at - 30)
    return f"at {at}: {answer.text[start : at + 30]!r} for {known.text[start : at + 30]!r}"
