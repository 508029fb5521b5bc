"""From what the generator yields to JSON bodies: a whole answer, or the events of a stream.

A writer knows one request's id, model and seed; `ChatWriter` and `TextWriter` differ in shape only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from deployments.api.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    TextChoice,
    TextChoiceOfPrompt,
    metrics_of,
    usage_of,
)
from deployments.api.choices import finished_together
from deployments.api.logprob_shapes import (
    ChatLogprobs,
    TextLogprobs,
    chat_logprobs,
    echoed_logprobs,
    joined,
    prompt_logprobs,
    prompt_offsets,
    text_logprobs,
)
from models.messages import TokenLogprobs
from models.tokenizer import Tokenizer
from router.generation import Delta, Finished, FinishReason, ShownToken


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every answer and every event of one request repeats, and what it asked for."""

    id: str
    created: int  # Unix time, seconds
    model: str
    seed: int
    tokenizer: Tokenizer
    include_usage: bool = False  # of a stream
    num_logprobs: int = -1  # -1: none
    num_prompt_logprobs: int = -1  # as the client asked for them; -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A prompt that is part of the answer."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """All of one choice."""

    deltas: Sequence[Delta]
    finished: Finished

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def shown(self) -> list[ShownToken]:
        """Its tokens, where logprobs are asked for."""
        return [token for delta in self.deltas for token in delta.shown]

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those of the prompt, where they are asked for."""
        return self.deltas[0].prompt_logprobs or () if self.deltas else ()


class Writer(Protocol):
    """Turns what the generator yields into JSON bodies."""

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def opening(self, num_choices: int) -> list[bytes]:
        """Events before the first text."""
        ...

    def delta(self, index: int, delta: Delta) -> list[bytes]:
        """The events for new text of a choice."""
        ...

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """Events behind the last text of a choice."""
        ...

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """Events behind all choices."""
        ...


class ChatWriter:
    """Bodies of POST /v1/chat/completions."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """See `Writer`."""
        head = self._head
        together = finished_together([choice.finished for choice in choices])
        answer = ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[
                ChatChoice(
                    index=index,
                    message=AssistantMessage(content=choice.text),
                    logprobs=self._logprobs(choice.shown),
                    finish_reason=choice.finished.finish_reason,
                )
                for index, choice in enumerate(choices)
            ],
            usage=usage_of(together),
            seed=head.seed,
            metrics=metrics_of(together.speculation),
        )
        if head.num_prompt_logprobs >= 0:
            answer.prompt_logprobs = prompt_logprobs(
                choices[0].prompt_logprobs, head.tokenizer, head.num_prompt_logprobs
            )
        return answer.to_json()

    def opening(self, num_choices: int) -> list[bytes]:
        """See `Writer`."""
        delta: dict[Literal["role", "content"], str] = {"role": "assistant", "content": ""}
        return [self._chunk(index, delta).to_json() for index in range(num_choices)]

    def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`."""
        if not delta.text and not delta.shown:
            return []
        logprobs = self._logprobs(delta.shown)
        return [self._chunk(index, {"content": delta.text}, logprobs).to_json()]

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        last = self._chunk(index, {}, finish_reason=finished.finish_reason)
        return [_closed(last, self._head, finished)]

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        return _trailing(self._chunk(0, {}), self._head, ends)

    def _logprobs(self, shown: Sequence[ShownToken]) -> ChatLogprobs | None:
        return chat_logprobs(shown, self._head.tokenizer) if self._head.num_logprobs >= 0 else None

    def _chunk(
        self,
        index: int,
        delta: dict[Literal["role", "content"], str],
        logprobs: ChatLogprobs | None = None,
        finish_reason: FinishReason | None = None,
    ) -> ChatCompletionChunk:
        head = self._head
        choice = ChatChunkChoice(
            index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason
        )
        chunk = ChatCompletionChunk(
            id=head.id, created=head.created, model=head.model, choices=[choice]
        )
        if head.include_usage:
            chunk.usage = None  # set: OpenAI then writes null on every event but the last
        return chunk


class TextWriter:
    """Bodies of POST /v1/completions; an `echo` is put in front of each choice."""

    def __init__(self, head: AnswerHead, echo: Echo | None = None) -> None:
        self._head = head
        self._echo = echo
        self._echoed: set[int] = set()  # choices of a stream whose echo is out

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """See `Writer`."""
        head = self._head
        of_prompt = choices[0].prompt_logprobs
        shapes: list[TextChoice] = []
        for index, choice in enumerate(choices):
            text, logprobs = self._with_echo(choice.text, choice.shown, of_prompt)
            shape = TextChoice(
                index=index,
                text=text,
                logprobs=logprobs,
                finish_reason=choice.finished.finish_reason,
            )
            if head.num_prompt_logprobs >= 0:
                shaped = prompt_logprobs(of_prompt, head.tokenizer, head.num_prompt_logprobs)
                shape = TextChoiceOfPrompt(**dict(shape), prompt_logprobs=shaped)
            shapes.append(shape)
        together = finished_together([choice.finished for choice in choices])
        answer = self._completion(shapes)
        _add_totals(answer, head, together)
        answer.usage = usage_of(together)
        return answer.to_json()

    def opening(self, num_choices: int) -> list[bytes]:
        """See `Writer`."""
        return []

    def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`."""
        if self._echo is not None and index not in self._echoed:
            self._echoed.add(index)
            text, logprobs = self._with_echo(delta.text, delta.shown, delta.prompt_logprobs or ())
        elif not delta.text and not delta.shown:
            return []
        else:
            text, logprobs = delta.text, self._logprobs(delta.shown)
        return [self._chunk(TextChoice(index=index, text=text, logprobs=logprobs)).to_json()]

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        choice = TextChoice(index=index, text="", finish_reason=finished.finish_reason)
        return [_closed(self._chunk(choice), self._head, finished)]

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        return _trailing(self._chunk(TextChoice(index=0, text="")), self._head, ends)

    def _with_echo(
        self, text: str, shown: Sequence[ShownToken], of_prompt: Sequence[TokenLogprobs]
    ) -> tuple[str, TextLogprobs | None]:
        echo, head = self._echo, self._head
        logprobs = self._logprobs(shown)
        if echo is None:
            return text, logprobs
        if logprobs is not None:
            offsets = prompt_offsets(echo.token_ids, echo.text, head.tokenizer)
            echoed = echoed_logprobs(
                echo.token_ids, offsets, of_prompt, head.tokenizer, head.num_logprobs
            )
            logprobs = joined(echoed, logprobs)
        return echo.text + text, logprobs

    def _logprobs(self, shown: Sequence[ShownToken]) -> TextLogprobs | None:
        if self._head.num_logprobs < 0:
            return None
        first_offset = 0 if self._echo is None else len(self._echo.text)
        return text_logprobs(shown, self._head.tokenizer, first_offset)

    def _chunk(self, choice: TextChoice) -> Completion:
        chunk = self._completion([choice])
        if self._head.include_usage:
            chunk.usage = None
        return chunk

    def _completion(self, choices: list[TextChoice]) -> Completion:
        head = self._head
        return Completion(id=head.id, created=head.created, model=head.model, choices=choices)


def _closed(last: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished) -> bytes:
    """The event with the finish reason, and with the totals if no usage event follows."""
    if not head.include_usage:
        _add_totals(last, head, finished)
    return last.to_json()


def _trailing(
    shape: ChatCompletionChunk | Completion, head: AnswerHead, ends: Sequence[Finished]
) -> list[bytes]:
    """The event with the usage, if asked for."""
    if not head.include_usage:
        return []
    together = finished_together(ends)
    trailing = shape.model_copy(update={"choices": [], "usage": usage_of(together)})
    _add_totals(trailing, head, together)
    return [trailing.to_json()]


def _add_totals(
    answer: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished
) -> None:
    answer.seed = head.seed
    answer.metrics = metrics_of(finished.speculation)
