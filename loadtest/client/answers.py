"""Reads a streamed answer line by line, times it, and says what is wrong with it.

Knows no client: it is fed lines and clock readings, so locust's users and the tests share it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from loadtest.client.workload import Request

_DONE = "[DONE]"
_PREFIX = "data: "


@dataclass
class StreamedAnswer:
    """What has come of one answer so far."""

    began_s: float
    text: str = ""
    finish_reason: str | None = None
    first_text_s: float | None = None
    last_text_s: float | None = None
    num_completion_tokens: int = 0
    speculation: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    is_done: bool = False

    def take(self, line: str, now_s: float) -> None:
        """Take in one line of the event stream."""
        if not line.startswith(_PREFIX):
            return
        data = line.removeprefix(_PREFIX)
        if data == _DONE:
            self.is_done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = str(event["error"]["message"])
            return
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                self.text += choice["delta"]["content"]
                self.first_text_s = now_s if self.first_text_s is None else self.first_text_s
                self.last_text_s = now_s
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if event.get("usage"):
            self.num_completion_tokens = event["usage"]["completion_tokens"]
        if event.get("metrics"):
            self.speculation = event["metrics"]["speculative_decoding"]

    def figures(self) -> dict[str, float]:
        """What locust is told beside the whole time: names with units, as far as they are known."""
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
            speculation = self.speculation
            figures["acceptance, %"] = 100 * speculation["draft_acceptance_rate"]
            figures["k, hundredths"] = (
                100 * speculation["num_draft_tokens"] / speculation["num_spec_steps"]
            )
        return figures


class Judge:
    """Tells wrong answers from right ones. One per run: it remembers the text of every key."""

    def __init__(self, *, expects_same_text: bool) -> None:
        self._expects_same_text = expects_same_text
        self._texts: dict[str, str] = {}

    def complaint(self, request: Request, answer: StreamedAnswer) -> str:
        """Why the answer is wrong, or ""."""
        if answer.error:
            return f"error event: {answer.error}"
        if not answer.is_done or answer.finish_reason is None:
            return "the stream broke off without an end"
        if request.schema is not None:
            wrong = _schema_complaint(answer.text, request.schema)
            if wrong:
                return wrong
        known = self._texts.setdefault(request.key, answer.text)
        if self._expects_same_text and known != answer.text:
            return f"another text for the same seed: {answer.text[:80]!r}, not {known[:80]!r}"
        return ""

    @staticmethod
    def refusal_complaint(request: Request, status: int, content: str) -> str:
        """Why the answer to a bad request is wrong, or ""."""
        if status != 400:
            return f"status {status} for a bad {request.bad_field}, not 400"
        try:
            param = json.loads(content)["error"]["param"]
        except (ValueError, KeyError, TypeError):
            return f"an error that is not OpenAI's: {content[:80]!r}"
        if not str(param).startswith(str(request.bad_field)):
            return f"the error names {param!r}, not {request.bad_field!r}"
        return ""


def _schema_complaint(text: str, schema: dict[str, Any]) -> str:
    try:
        jsonschema.validate(json.loads(text), schema)
    except ValueError:
        return f"not JSON: {text[:80]!r}"
    except jsonschema.ValidationError as error:
        return f"JSON outside its schema: {error.message[:120]}"
    return ""
