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
from typing import TypeVar

from msgspec import UNSET, UnsetType

from deployments.api.choices import finished_together
from deployments.api.schemas.answers import (
    ChatCompletionChunk,
    Completion,
    counts_of,
    metrics_of,
    usage_of,
)
from deployments.api.schemas.logprobs import ChoiceProbability, TokenNames, probabilities_of
from models.text.tokenizer import Tokenizer
from router.types import Delta, Finished

Chunk = TypeVar("Chunk", ChatCompletionChunk, Completion)


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


def listed(values: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return a JSON list of values, each of which is given in chunks."""
    chunks = [b"["]
    for value in values:
        if len(chunks) > 1:
            chunks.append(b",")
        chunks += value
    return [*chunks, b"]"]


class ChoicesWriter(Writer):
    """Writes choices; what chats and completions have alike."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._names = TokenNames(head.tokenizer)
        self._num_sent = [0] * head.num_choices  # tokens of a stream's choices so far
        # State of an answer that is not streamed:
        self._of_list: list[list[ChoiceProbability]] = [[] for _ in range(head.num_choices)]
        self._ids: list[list[int]] = [[] for _ in range(head.num_choices)]

    def _keep(self, index: int, delta: Delta) -> None:
        """Keep the probabilities and ids of a choice for the whole answer."""
        self._of_list[index] += probabilities_of(self.head.choice_texts, delta)
        self._ids[index] += delta.token_ids

    def _counted(self, chunk: Chunk, index: int) -> Chunk:
        """Return an event of a choice, with the tokens so far as vLLM has them on every event."""
        head = self.head
        if head.include_usage:  # OpenAI then writes null on every event but the last
            num_prompt = head.prompt_lens[head.prompt_of(index)]
            counts = counts_of(num_prompt, self._num_sent[index])
            chunk.usage = counts if head.has_continuous_usage else None
        return chunk

    def _closed(self, last: Chunk, finished: Finished) -> bytes:
        """Return the event with the finish reason, and the totals if no usage event follows."""
        if not self.head.include_usage:
            self._add_totals(last, finished)
        return last.to_json()

    def _trailed(self, chunk: Chunk, ends: Sequence[Finished]) -> list[bytes]:
        """Return the event with the usage, if requested."""
        if not self.head.include_usage:
            return []
        together = finished_together(ends, len(self.head.prompt_lens))
        chunk.choices, chunk.usage = [], usage_of(together)
        self._add_totals(chunk, together)
        return [chunk.to_json()]

    def _add_totals(self, answer: Chunk, finished: Finished) -> None:
        """Put seed and measurements into the last thing that is said."""
        answer.seed = self.head.seed
        answer.metrics = metrics_of(finished)
