"""Bodies and events of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from deployments.api.choices import finished_together
from deployments.api.schemas.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFinishReason,
    metrics_of,
    usage_of,
)
from deployments.api.schemas.logprobs import (
    ChatLogprobsJson,
    PromptLogprobsJson,
    probabilities_of,
)
from deployments.api.turns.turn_writer import TurnWriter
from deployments.api.writing.json_chunks import in_slices, with_value
from deployments.api.writing.writers import AnswerHead, ChoicesWriter, listed
from models.text.tools.turn import Turn
from router.types import Delta, Finished


class ChatWriter(ChoicesWriter):
    """Writes a chat's answer.

    Args:
        head: of the answer.
        turn: what each choice may be; None: text as it comes.
    """

    def __init__(self, head: AnswerHead, turn: Turn | None = None) -> None:
        super().__init__(head)
        self._turns = [TurnWriter(turn) for _ in range(head.num_choices)]
        # State of an answer that is not streamed:
        self._logprobs = [ChatLogprobsJson(self._names) for _ in range(head.num_choices)]
        self._of_prompt = PromptLogprobsJson(self._names, head.num_prompt_logprobs)

    async def add(self, index: int, delta: Delta) -> None:
        """See `Writer`."""
        self._turns[index].add(delta.text)
        await in_slices(delta.shown, self._logprobs[index].add)
        await in_slices(delta.prompt_logprobs or (), self._of_prompt.add)
        self._keep(index, delta)

    def whole(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        head = self.head
        together = finished_together(ends)
        answer = ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[],
            usage=usage_of(together),
            seed=head.seed,
            metrics=metrics_of(together),
            prompt_logprobs=UNSET if head.num_prompt_logprobs < 0 else None,
            prompt_token_ids=head.prompt_ids_of(0),
        )
        choices = listed([self._choice(index, end) for index, end in enumerate(ends)])
        *chunks, tail = with_value(answer.to_json(), "choices", choices, instead="[]")
        if head.num_prompt_logprobs < 0:
            return [*chunks, tail]
        return [*chunks, *with_value(tail, "prompt_logprobs", self._of_prompt.chunks)]

    def opening(self) -> list[bytes]:
        """See `Writer`."""
        chunks = [self._chunk(index, turn.first_delta()) for index, turn in enumerate(self._turns)]
        for chunk in chunks:
            chunk.prompt_token_ids = self.head.prompt_ids_of(0)
        return [chunk.to_json() for chunk in chunks]

    async def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`."""
        self._num_sent[index] += len(delta.token_ids)
        deltas = self._turns[index].deltas(delta.text)
        if not deltas and delta.shown:
            deltas = [{"content": ""}]
        of_list = probabilities_of(self.head.choice_texts, delta)
        if not deltas and (of_list or (self.head.has_ids and delta.token_ids)):
            deltas = [{}]  # neither waits for text
        chunks = [self._chunk(index, one) for one in deltas]
        if of_list:
            chunks[0].choices[0].choice_probabilities = of_list
        if chunks:
            chunks[0].choices[0].token_ids = self.head.ids(delta.token_ids)
        bodies = [chunk.to_json() for chunk in chunks]
        if self.head.num_logprobs < 0 or not bodies:
            return bodies
        logprobs = ChatLogprobsJson(self._names)
        await in_slices(delta.shown, logprobs.add)
        first = b"".join(with_value(bodies[0], "logprobs", logprobs.chunks))
        return [first, *bodies[1:]]

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        turn = self._turns[index]
        held = [self._chunk(index, one).to_json() for one in turn.last_deltas()]
        reason = turn.finish_reason(finished.finish_reason)
        return [*held, self._closed(self._chunk(index, {}, reason), finished)]

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        return self._trailed(self._chunk(0, {}), ends)

    def _choice(self, index: int, end: Finished) -> list[bytes]:
        turn = self._turns[index]
        choice = ChatChoice(
            index=index,
            message=turn.message(),
            finish_reason=turn.finish_reason(end.finish_reason),
            choice_probabilities=self._of_list[index] or UNSET,
            token_ids=self.head.ids(self._ids[index]),
        )
        body = choice.to_json()
        if self.head.num_logprobs < 0:
            return [body]
        return with_value(body, "logprobs", self._logprobs[index].chunks)

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        finish_reason: ChatFinishReason | None = None,
    ) -> ChatCompletionChunk:
        head = self.head
        choice = ChatChunkChoice(index=index, delta=delta, finish_reason=finish_reason)
        chunk = ChatCompletionChunk(
            id=head.id, created=head.created, model=head.model, choices=[choice]
        )
        return self._counted(chunk, index)
