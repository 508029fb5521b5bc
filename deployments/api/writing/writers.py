"""Writes what the generator yields as JSON: a whole answer, or the events of a stream.

A writer is made for one request and knows its id, model and seed. `chat_writer.py` and
`text_writer.py` differ in shape only. Long lists of logprobs are encoded as they come, in slices,
and put into their places as chunks (`json_chunks.py`). Those of a prompt are encoded once for all
of its choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from deployments.api.choices import finished_together
from deployments.api.schemas.answers import (
    ChatCompletionChunk,
    Completion,
    TokenCounts,
    counts_of,
    metrics_of,
    usage_of,
)
from models.text.tokenizer import Tokenizer
from router.types import Delta, Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """The fields that every answer and event of a request repeats, and its options."""

    id: str
    created: int  # Unix time, seconds
    model: str
    seed: int
    tokenizer: Tokenizer
    prompt_lens: tuple[int, ...] = (0,)  # tokens of each prompt
    prompt_ids: Sequence[Sequence[int]] | None = None  # None: the answer has no token ids
    choices_per_prompt: int = 1  # prompt i has those from i times this on
    include_usage: bool = False  # a stream has an event with it at the end
    has_continuous_usage: bool = False  # and counts so far on all others
    num_logprobs: int = -1  # -1: none
    num_prompt_logprobs: int = -1  # as the client asked for them; -1: none
    choice_texts: tuple[str, ...] = ()  # texts whose probabilities are part of the answer

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together."""
        return len(self.prompt_lens) * self.choices_per_prompt

    @property
    def has_ids(self) -> bool:
        """True if the answer has the ids of all tokens."""
        return self.prompt_ids is not None

    def prompt_ids_of(self, choice: int) -> Sequence[int] | UnsetType:
        """Return the ids of a choice's prompt, as the answer has them."""
        return UNSET if self.prompt_ids is None else self.prompt_ids[self.prompt_of(choice)]

    def ids(self, token_ids: Sequence[int]) -> Sequence[int] | UnsetType:
        """Return the ids of a choice, as the answer has them."""
        return token_ids if self.has_ids else UNSET

    def prompt_of(self, choice: int) -> int:
        """Return the number of the prompt that a choice answers."""
        return choice // self.choices_per_prompt


class Writer(ABC):
    """Turns what the generator yields into JSON."""

    def __init__(self, head: AnswerHead) -> None:
        self.head = head

    @abstractmethod
    async def add(self, index: int, delta: Delta) -> None:
        """Take new text of a choice, of an answer that is not streamed."""

    @abstractmethod
    def whole(self, ends: Sequence[Finished]) -> list[bytes]:
        """Return the body of the whole answer, in chunks.

        `ends` are those of all choices, in order.
        """

    def opening(self) -> list[bytes]:
        """Events before the first text."""
        return []

    @abstractmethod
    async def delta(self, index: int, delta: Delta) -> list[bytes]:
        """Return the events for new text of a choice."""

    @abstractmethod
    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """Events after the last text of a choice."""

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """Events after all choices."""
        return []


class RunningCounts:
    """Tokens of each choice of a stream so far, as its events report them."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._num_completion = [0] * head.num_choices

    def add(self, index: int, delta: Delta) -> None:
        """Count new tokens of a choice, whether or not their text is out."""
        self._num_completion[index] += len(delta.token_ids)

    def of(self, index: int) -> TokenCounts:
        """Counts of one choice and its prompt, as vLLM has them on every event."""
        num_prompt = self._head.prompt_lens[self._head.prompt_of(index)]
        return counts_of(num_prompt, self._num_completion[index])


def listed(values: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return a JSON list of values, each of which is given in chunks."""
    chunks = [b"["]
    for value in values:
        if len(chunks) > 1:
            chunks.append(b",")
        chunks += value
    return [*chunks, b"]"]


def closed(last: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished) -> bytes:
    """Return the event with the finish reason, and with the totals if no usage event follows."""
    if not head.include_usage:
        add_totals(last, head, finished)
    return last.to_json()


def trailed(
    shape: ChatCompletionChunk | Completion, head: AnswerHead, ends: Sequence[Finished]
) -> list[bytes]:
    """Return the event with the usage, if requested."""
    if not head.include_usage:
        return []
    together = finished_together(ends, len(head.prompt_lens))
    shape.choices, shape.usage = [], usage_of(together)
    add_totals(shape, head, together)
    return [shape.to_json()]


def add_totals(
    answer: ChatCompletionChunk | Completion, head: AnswerHead, finished: Finished
) -> None:
    """Put seed and measurements into the last thing that is said."""
    answer.seed = head.seed
    answer.metrics = metrics_of(finished)
