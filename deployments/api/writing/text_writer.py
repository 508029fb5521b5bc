"""Bodies and events of POST /v1/completions; an `echo` is put in front of each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from deployments.api.choices import finished_together
from deployments.api.schemas.answers import Completion, TextChoice, usage_of
from deployments.api.schemas.logprobs import (
    PromptLogprobsJson,
    TextLogprobsJson,
    probabilities_of,
    prompt_offsets,
)
from deployments.api.writing.json_chunks import in_slices, with_value
from deployments.api.writing.writers import AnswerHead, ChoicesWriter, listed
from models.protocol.packed_logprobs import unpack
from router.types import Delta, Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A prompt that is part of the answer."""

    text: str
    token_ids: tuple[int, ...]


class TextWriter(ChoicesWriter):
    """Writes a completion's answer.

    Args:
        head: of the answer.
        echoes: each prompt, where they are part of the answer; else empty.
    """

    def __init__(self, head: AnswerHead, echoes: Sequence[Echo] = ()) -> None:
        super().__init__(head)
        self._echoes = echoes
        self._echoed: dict[int, TextLogprobsJson] = {}  # by prompt: of an echo, all its choices'
        self._begun: set[int] = set()  # choices of a stream that have an event
        # State of an answer that is not streamed, by choice and by prompt:
        self._texts: list[list[str]] = [[] for _ in range(head.num_choices)]
        self._logprobs = [self._new_logprobs(index) for index in range(head.num_choices)]
        self._of_prompt = [
            PromptLogprobsJson(self._names, head.num_prompt_logprobs) for _ in head.prompt_lens
        ]

    async def add(self, index: int, delta: Delta) -> None:
        """See `Writer`."""
        self._texts[index].append(delta.text)
        self._keep(index, delta)
        await in_slices(delta.shown, self._logprobs[index].add)
        if delta.prompt_logprobs is None:
            return
        prompt = self.head.prompt_of(index)
        if self.head.num_prompt_logprobs >= 0:
            await in_slices(delta.prompt_logprobs, self._of_prompt[prompt].add)
        await self._take_echo(prompt, delta.prompt_logprobs)

    def whole(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        together = finished_together(ends, len(self.head.prompt_lens))
        answer = self._completion([])
        self._add_totals(answer, together)
        answer.usage = usage_of(together)
        choices = listed([self._choice(index, end) for index, end in enumerate(ends)])
        return with_value(answer.to_json(), "choices", choices, instead="[]")

    async def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`."""
        self._num_sent[index] += len(delta.token_ids)
        prompt = self.head.prompt_of(index)
        is_first = index not in self._begun
        echo = self._echoes[prompt] if is_first and self._echoes else None
        has_ids = self.head.has_ids and (is_first or delta.token_ids)  # they wait for no text
        of_list = probabilities_of(self.head.choice_texts, delta) or UNSET
        if not (delta.text or delta.shown or has_ids or of_list) and echo is None:
            return []
        text = delta.text if echo is None else echo.text + delta.text
        choice = TextChoice(
            index=index,
            text=text,
            choice_probabilities=of_list,
            token_ids=self.head.ids(delta.token_ids),
            prompt_token_ids=self.head.prompt_ids_of(index) if is_first else UNSET,
        )
        self._begun.add(index)
        body = self._chunk(choice).to_json()
        if self.head.num_logprobs < 0:
            return [body]
        if echo is not None:
            await self._take_echo(prompt, delta.prompt_logprobs or ())
        logprobs = self._new_logprobs(index)
        await in_slices(delta.shown, logprobs.add)
        chunks = logprobs.chunks_after(None if echo is None else self._echoed[prompt])
        return [b"".join(with_value(body, "logprobs", chunks))]

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        choice = TextChoice(index=index, text="", finish_reason=finished.finish_reason)
        return [self._closed(self._chunk(choice), finished)]

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        return self._trailed(self._chunk(TextChoice(index=0, text="")), ends)

    def _choice(self, index: int, end: Finished) -> list[bytes]:
        head, prompt = self.head, self.head.prompt_of(index)
        text = "".join(self._texts[index])
        if self._echoes:
            text = self._echoes[prompt].text + text
        choice = TextChoice(
            index=index,
            text=text,
            finish_reason=end.finish_reason,
            prompt_logprobs=UNSET if head.num_prompt_logprobs < 0 else None,
            choice_probabilities=self._of_list[index] or UNSET,
            prompt_token_ids=head.prompt_ids_of(index),
            token_ids=head.ids(self._ids[index]),
        )
        chunks = [choice.to_json()]
        if head.num_logprobs >= 0:
            logprobs = self._logprobs[index].chunks_after(self._echoed.get(prompt))
            chunks = with_value(chunks[0], "logprobs", logprobs)
        if head.num_prompt_logprobs >= 0:
            *chunks, tail = chunks
            chunks += with_value(tail, "prompt_logprobs", self._of_prompt[prompt].chunks)
        return chunks

    def _new_logprobs(self, index: int) -> TextLogprobsJson:
        echo = self._echoes[self.head.prompt_of(index)] if self._echoes else None
        return TextLogprobsJson(self._names, 0 if echo is None else len(echo.text))

    async def _take_echo(self, prompt: int, packed: Sequence[bytes]) -> None:
        """Encode the logprobs of an echoed prompt, where they are asked for, once."""
        if not self._echoes or self.head.num_logprobs < 0 or prompt in self._echoed:
            return
        echo, num_top = self._echoes[prompt], self.head.num_logprobs
        logprobs = self._echoed[prompt] = TextLogprobsJson(self._names)
        offsets = prompt_offsets(echo.token_ids, echo.text, self.head.tokenizer)
        next(offsets)  # 0: that of the first
        logprobs.add_first(echo.token_ids[0])
        await in_slices(
            packed, lambda entry: logprobs.add_entry(next(offsets), unpack(entry), num_top)
        )

    def _chunk(self, choice: TextChoice) -> Completion:
        return self._counted(self._completion([choice]), choice.index)

    def _completion(self, choices: list[TextChoice]) -> Completion:
        head = self.head
        return Completion(id=head.id, created=head.created, model=head.model, choices=choices)
