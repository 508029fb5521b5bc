"""Makes a validated body a job: what is to run for it, and how its answer is written.

Pure computing, and for a long body a good deal of it: the routes do it outside the event loop.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from deployments.api.choices import choices_of
from deployments.api.requests import ServedModel, prepare_completions, prepare_turn
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.sampling_terms import asked_logprobs
from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
    SharedFields,
)
from deployments.api.schemas.strict_fields import wrong_field
from deployments.api.writing.chat_writer import ChatWriter
from deployments.api.writing.details_writer import DetailsWriter
from deployments.api.writing.obfuscation import sealing
from deployments.api.writing.resuming import Begun, Marks
from deployments.api.writing.sse import DONE, encode_events
from deployments.api.writing.text_writer import Echo, TextWriter
from deployments.api.writing.writers import AnswerHead, Writer
from router.types import GenerationRequest

Asked = TypeVar("Asked", ChatCompletionRequest, CompletionRequest)

# The details of a token and of its round have up to 750 bytes, and a stream sends them twice. So
# they count as 20 logprobs of 75 bytes each.
_LOGPROBS_PER_DETAIL = 20


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to run, and how its answer is written."""

    requests: list[GenerationRequest]  # one for each choice
    writer: Writer
    is_stream: bool
    continues_prompt: bool  # True: the text goes on where the prompt's ends
    # That constrain the answer, as the client spelt them: first its own, then those of the lines
    # of a grammar that was made for the request, from the second on.
    grammar_fields: tuple[str, ...]
    sealed: Callable[[bytes], bytes]  # seals the bodies of a stream's events
    num_prompts: int = 1
    shown_ids: tuple[int, ...] = ()  # special tokens that are part of the text
    encode: Callable[[Iterable[bytes]], bytes] = encode_events  # bodies as events of a stream
    done: bytes = DONE  # the end of a stream without a fault
    failed: Callable[[bytes], bytes] = lambda body: body  # an error's body as an event's
    marks: Marks | None = None  # of a stream whose events have ids

    def events(self, bodies: Sequence[bytes]) -> bytes:
        """Return bodies as events of a stream, the last with the id by which to go on from it."""
        events = self.encode(map(self.sealed, bodies))
        return events if self.marks is None or not bodies else self.marks.marked(events)

    def after(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the ids whose text the answer to one of the requests continues."""
        return request.prompt_ids if self.continues_prompt else ()


def chat_job(asked: ChatCompletionRequest, model: ServedModel, begun: Begun | None = None) -> Job:
    """Return the job of POST /v1/chat/completions, or raise its refusal.

    `begun` is the stream that it goes on with.
    """
    asked = _going_on(asked, begun)
    prompt, turn = prepare_turn(asked, model, f"chatcmpl-{uuid.uuid4().hex}")
    check_logprob_entries(asked, [prompt], model.max_logprob_entries)
    head = answer_head(asked, [prompt], model, begun)
    return Job(
        _with_known(choices_of([prompt], asked.n, is_stream=asked.stream), begun, asked, model),
        with_details(ChatWriter(head, turn.turn), asked),
        asked.stream,
        continues_prompt=False,
        grammar_fields=turn.fields,
        sealed=seal_of(asked),
        shown_ids=turn.shown_ids,
        marks=_marks(asked, head, begun),
    )


def completion_job(asked: CompletionRequest, model: ServedModel, begun: Begun | None = None) -> Job:
    """Return the job of POST /v1/completions, or raise its refusal; `begun` as for chats."""
    asked = _going_on(asked, begun)
    prompts, turn = prepare_completions(asked, model, f"cmpl-{uuid.uuid4().hex}")
    check_logprob_entries(asked, prompts, model.max_logprob_entries)
    head = answer_head(asked, prompts, model, begun)
    writer = TextWriter(head, _echoes(asked, prompts, model))
    return Job(
        _with_known(choices_of(prompts, asked.n, is_stream=asked.stream), begun, asked, model),
        with_details(writer, asked),
        asked.stream,
        continues_prompt=True,
        grammar_fields=turn.fields,
        num_prompts=len(prompts),
        sealed=seal_of(asked),
        marks=_marks(asked, head, begun),
    )


def _going_on(asked: Asked, begun: Begun | None) -> Asked:
    """Return what is asked for, with the seed of the stream that it goes on with.

    Raises:
        InvalidRequest: it is no stream, or has another seed.
    """
    if begun is None:
        return asked
    if not asked.stream:
        raise wrong_field(
            "stream", "must be true with Last-Event-ID, which goes on with a stream (got false)"
        )
    begun.check_seed(asked.seed)
    return asked.model_copy(update={"seed": begun.seed})


def _with_known(
    choices: list[GenerationRequest],
    begun: Begun | None,
    asked: GenerationFields,
    model: ServedModel,
) -> list[GenerationRequest]:
    """Return the choices, each with the tokens that its client sends back.

    Raises:
        InvalidRequest: there is no such stream, or its tokens are others.
    """
    sent = asked.resume_token_ids
    if not sent:
        return choices
    if begun is None:
        raise wrong_field(
            "resume_token_ids",
            f"needs Last-Event-ID, the id of a stream's event (got {len(sent)} lists without it)",
        )
    known = begun.known_ids(sent, model.tokenizer.vocab_size)
    # `Marks` checks the number of choices.
    return [replace(one, known_ids=ids) for one, ids in zip(choices, known, strict=False)]


def _marks(
    asked: ChatCompletionRequest | CompletionRequest, head: AnswerHead, begun: Begun | None
) -> Marks | None:
    """Return the marks of a stream; none where its events shall not tell the length of a text."""
    options = asked.stream_options
    is_sealed = options is not None and options.include_obfuscation
    return None if is_sealed and begun is None else Marks(head, begun)


def with_details(writer: Writer, asked: SharedFields) -> Writer:
    """Return the writer; it tells the rounds too if they are requested."""
    return DetailsWriter(writer) if asked.speculation.details else writer


def seal_of(asked: GenerationFields | ResponsesRequest) -> Callable[[bytes], bytes]:
    """Return what is done to the bodies of a stream's events."""
    options = asked.stream_options
    if options is not None and options.include_obfuscation:
        return sealing(asked.model)
    return lambda body: body


def _echoes(
    asked: CompletionRequest, prompts: Sequence[GenerationRequest], model: ServedModel
) -> list[Echo]:
    if not asked.echo:
        return []
    return [
        Echo(
            text=prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt),
            token_ids=request.prompt_ids,
        )
        for prompt, request in zip(asked.prompt, prompts, strict=True)
    ]


def answer_head(
    asked: ChatCompletionRequest | CompletionRequest,
    prompts: Sequence[GenerationRequest],
    model: ServedModel,
    begun: Begun | None = None,
) -> AnswerHead:
    """Return the fields that all parts of the answer repeat."""
    options = asked.stream_options
    request = prompts[0]
    return AnswerHead(
        # The session has an id of its own: the engines may still have the other one.
        id=request.request_id if begun is None else begun.id,
        created=int(time.time()) if begun is None else begun.created,
        model=asked.model,
        seed=request.sampling.seed,
        tokenizer=model.tokenizer,
        prompt_lens=tuple(len(prompt.prompt_ids) for prompt in prompts),
        prompt_ids=[prompt.prompt_ids for prompt in prompts] if asked.return_token_ids else None,
        choices_per_prompt=asked.n,
        num_logprobs=asked_logprobs(asked),
        choice_texts=_choice_texts(asked),
        num_prompt_logprobs=-1 if asked.prompt_logprobs is None else asked.prompt_logprobs,
        include_usage=options is not None and options.wants_usage,
        has_continuous_usage=options is not None and options.continuous_usage_stats,
    )


def _choice_texts(asked: GenerationFields) -> tuple[str, ...]:
    """Return the choices whose probabilities the answer must have."""
    outputs = asked.structured_outputs
    if outputs is None or not outputs.choice_probabilities:
        return ()
    return tuple(outputs.exact_choices)


class _Part(NamedTuple):
    """Entries that one field asks for."""

    field: str
    num_positions: int
    per_position: int

    @property
    def num_entries(self) -> int:
        return self.num_positions * self.per_position


def check_logprob_entries(
    asked: ChatCompletionRequest | CompletionRequest,
    prompts: Sequence[GenerationRequest],
    limit: int,
) -> None:
    """Check the number of logprobs in an answer against the limit.

    An answer has an entry for the token at a position. It has one more for each of the likeliest in
    its place. That makes (1 + top) at every position of its choices and, if requested, of its
    prompts. Each is about 75 bytes of JSON, which router and proxies hold until the client has
    taken them. So this limits a request's cost to others in memory and time. It holds even if the
    client does not read. Serve's proxy takes an answer from us at once. It keeps the part that the
    client has not taken until `request_timeout_s`. The number of such clients is not limited here.
    API keys and the balancer in front, which sees the connections, must limit it.

    Args:
        asked: the body.
        prompts: a request for each prompt.
        limit: most entries of one answer.

    Raises:
        InvalidRequest: it is more; names the field that asks for the most.
    """
    parts = _parts(asked, prompts)
    total = sum(part.num_entries for part in parts)
    if total <= limit:
        return
    most = max(parts, key=lambda part: part.num_entries)
    raise wrong_field(
        most.field,
        f"at most {limit} logprobs (max_logprob_entries) are allowed in an answer "
        f"(got {total}, of these {most.num_positions} positions with {most.per_position} each)",
    )


def _parts(
    asked: ChatCompletionRequest | CompletionRequest, prompts: Sequence[GenerationRequest]
) -> list[_Part]:
    num_logprobs = asked_logprobs(asked)
    num_generated = asked.n * sum(request.max_tokens for request in prompts)
    num_prompt = sum(len(request.prompt_ids) for request in prompts)
    parts = []
    field = "logprobs"
    if isinstance(asked, CompletionRequest):
        num_prompt *= asked.n  # each choice repeats its prompt's
        if asked.echo and asked.logprobs is not None:
            parts.append(_Part("echo", num_prompt, 1 + asked.logprobs))
    elif asked.top_logprobs:
        field = "top_logprobs"
    if num_logprobs >= 0:
        parts.append(_Part(field, num_generated, 1 + num_logprobs))
    if asked.speculation.details:
        parts.append(_Part("speculation.details", num_generated, _LOGPROBS_PER_DETAIL))
    if asked.prompt_logprobs is not None:
        parts.append(_Part("prompt_logprobs", num_prompt, 1 + asked.prompt_logprobs))
    return parts
