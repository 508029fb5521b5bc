"""Successful answers in OpenAI's shape, whole or as the events of a stream.

A writer knows one request's id, model and seed, and turns text and the final `Finished` into
JSON; `ChatWriter` and `TextWriter` differ in shape only. Answers carry two things OpenAI does
not have: `seed`, with which a request that named none can be repeated, and `metrics`, whose
`speculative_decoding` has vLLM's field names and is there whether or not anything was drafted.
In a stream both are on the trailing usage event, or, where none was asked for, on the event with
the `finish_reason`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from models.messages import DraftSource
from router.generation import Finished, FinishReason, SpeculationStats


class Answer(BaseModel):
    """A JSON answer. Fields named in `optional` are written only when they were set."""

    model_config = ConfigDict(protected_namespaces=())
    optional: ClassVar[frozenset[str]] = frozenset({"usage", "metrics", "seed"})

    def to_json(self) -> bytes:
        """The answer as UTF-8 JSON."""
        return self.model_dump_json(exclude=set(self.optional - self.model_fields_set)).encode()


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int  # found in the target's prefix cache when the request was admitted


class Usage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculativeDecoding(BaseModel):
    """What speculation did, in vLLM's words.

    A step is a round that had a draft; without any (speculation off) the counts are 0, the rate
    is 0 and the length 1. `mean_acceptance_length` counts the target's own token of each step.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]  # [a]: steps in which a draft tokens stood
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_draft_tokens_by: dict[DraftSource, int]  # who drafted them: draft_model, ngram
    num_spec_tokens: int


class RoundTimes(BaseModel):
    """Where the request's rounds spent their time, milliseconds, summed over `num_rounds`."""

    num_rounds: int
    draft_ms: float
    verify_ms: float
    mask_ms: float
    queue_ms: float
    link_ms: float
    grammar_ms: float
    loop_ms: float
    emit_ms: float


class Metrics(BaseModel):
    """Measurements of one request."""

    speculative_decoding: SpeculativeDecoding
    rounds: RoundTimes


class AssistantMessage(BaseModel):
    """The answer's message."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """The only choice of a chat answer."""

    index: Literal[0] = 0
    message: AssistantMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Answer):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    seed: int
    metrics: Metrics


class ChatChunkChoice(BaseModel):
    """New text of a chat stream; `delta` has a role, a content, or nothing."""

    index: Literal[0] = 0
    delta: dict[Literal["role", "content"], str]
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class ChatCompletionChunk(Answer):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    seed: int | None = None
    metrics: Metrics | None = None


class TextChoice(BaseModel):
    """The only choice of a completion; in a stream, its new text."""

    index: Literal[0] = 0
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(Answer):
    """Answer of POST /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    seed: int | None = None
    metrics: Metrics | None = None


class ModelCard(Answer):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "outrider"
    max_model_len: int


class ModelList(Answer):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


# --- writers ------------------------------------------------------------------------------------


def usage_of(finished: Finished) -> Usage:
    """Token counts in OpenAI's words."""
    return Usage(
        prompt_tokens=finished.num_prompt_tokens,
        completion_tokens=finished.num_completion_tokens,
        total_tokens=finished.num_prompt_tokens + finished.num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=finished.num_cached_tokens),
    )


def metrics_of(stats: SpeculationStats) -> Metrics:
    """Measurements of one request in vLLM's words."""
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=stats.mean_acceptance_length,
            draft_acceptance_rate=stats.draft_acceptance_rate,
            acceptance_histogram=list(stats.acceptance_histogram),
            num_spec_steps=stats.num_spec_steps,
            num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
            num_draft_tokens=stats.num_draft_tokens,
            num_draft_tokens_by=dict(stats.num_drafted_by),
            num_spec_tokens=stats.num_spec_tokens,
        ),
        rounds=RoundTimes(num_rounds=stats.num_rounds, **dataclasses.asdict(stats.time)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every answer and every event of one request repeats."""

    id: str
    created: int  # Unix time, seconds
    model: str
    seed: int
    include_usage: bool = False  # of a stream


class Writer(Protocol):
    """Turns what the generator yields into JSON bodies."""

    def whole(self, text: str, finished: Finished) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def opening(self) -> list[bytes]:
        """Events before the first text."""
        ...

    def delta(self, text: str) -> bytes:
        """The event for new text."""
        ...

    def closing(self, finished: Finished) -> list[bytes]:
        """Events behind the last text."""
        ...


class ChatWriter:
    """Bodies of POST /v1/chat/completions."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def whole(self, text: str, finished: Finished) -> bytes:
        """See `Writer`."""
        head = self._head
        choice = ChatChoice(
            message=AssistantMessage(content=text), finish_reason=finished.finish_reason
        )
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=usage_of(finished),
            seed=head.seed,
            metrics=metrics_of(finished.speculation),
        ).to_json()

    def opening(self) -> list[bytes]:
        """See `Writer`."""
        return [self._chunk({"role": "assistant", "content": ""}).to_json()]

    def delta(self, text: str) -> bytes:
        """See `Writer`."""
        return self._chunk({"content": text}).to_json()

    def closing(self, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        return _closing(self._chunk({}, finished.finish_reason), self._head, finished)

    def _chunk(
        self,
        delta: dict[Literal["role", "content"], str],
        finish_reason: FinishReason | None = None,
    ) -> ChatCompletionChunk:
        head = self._head
        choice = ChatChunkChoice(delta=delta, finish_reason=finish_reason)
        chunk = ChatCompletionChunk(
            id=head.id, created=head.created, model=head.model, choices=[choice]
        )
        if head.include_usage:
            chunk.usage = None  # set: OpenAI then writes null on every event but the last
        return chunk


class TextWriter:
    """Bodies of POST /v1/completions."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def whole(self, text: str, finished: Finished) -> bytes:
        """See `Writer`."""
        answer = self._chunk(text, finished.finish_reason)
        _add_totals(answer, self._head, finished)
        answer.usage = usage_of(finished)
        return answer.to_json()

    def opening(self) -> list[bytes]:
        """See `Writer`."""
        return []

    def delta(self, text: str) -> bytes:
        """See `Writer`."""
        return self._chunk(text).to_json()

    def closing(self, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        return _closing(self._chunk("", finished.finish_reason), self._head, finished)

    def _chunk(self, text: str, finish_reason: FinishReason | None = None) -> Completion:
        head = self._head
        choice = TextChoice(text=text, finish_reason=finish_reason)
        chunk = Completion(id=head.id, created=head.created, model=head.model, choices=[choice])
        if head.include_usage:
            chunk.usage = None
        return chunk


def _closing(
    last: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished
) -> list[bytes]:
    """The event with the finish reason and, if asked for, the trailing one with the usage."""
    if not head.include_usage:
        _add_totals(last, head, finished)
        return [last.to_json()]
    trailing = last.model_copy(update={"choices": [], "usage": usage_of(finished)})
    _add_totals(trailing, head, finished)
    return [last.to_json(), trailing.to_json()]


def _add_totals(
    answer: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished
) -> None:
    answer.seed = head.seed
    answer.metrics = metrics_of(finished.speculation)
