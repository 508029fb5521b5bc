"""Makes a validated body a job: what is to run for it, and how its answer is written.

Pure computing, and for a long body a good deal of it: the routes do it outside the event loop.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deployments.api.choices import choices_of
from deployments.api.logprob_limits import check_logprob_entries
from deployments.api.requests import ServedModel, prepare_chat, prepare_completions
from deployments.api.schemas.grammar_fields import asked_field
from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from deployments.api.writing.chat_writer import ChatWriter
from deployments.api.writing.obfuscation import sealing
from deployments.api.writing.text_writer import Echo, TextWriter
from deployments.api.writing.writers import AnswerHead, Writer
from router.types import GenerationRequest


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to run, and how its answer is written."""

    requests: list[GenerationRequest]  # one for each choice
    writer: Writer
    is_stream: bool
    continues_prompt: bool  # whether the text goes on where the prompt's ends
    grammar_field: str | None  # that constrains the answer, as the client spelt it
    num_prompts: int = 1
    sealed: Callable[[bytes], bytes] = lambda body: body  # what a stream does to its events' bodies

    def after(self, request: GenerationRequest) -> tuple[int, ...]:
        """The ids whose text the answer to one of the requests continues."""
        return request.prompt_ids if self.continues_prompt else ()


def chat_job(asked: ChatCompletionRequest, model: ServedModel) -> Job:
    """The job of POST /v1/chat/completions; raises what refuses it."""
    prompts = [prepare_chat(asked, model, f"chatcmpl-{uuid.uuid4().hex}")]
    check_logprob_entries(asked, prompts, model.max_logprob_entries)
    return _job(asked, prompts, ChatWriter(_head(asked, prompts, model)), continues_prompt=False)


def completion_job(asked: CompletionRequest, model: ServedModel) -> Job:
    """The job of POST /v1/completions; raises what refuses it."""
    prompts = prepare_completions(asked, model, f"cmpl-{uuid.uuid4().hex}")
    check_logprob_entries(asked, prompts, model.max_logprob_entries)
    writer = TextWriter(_head(asked, prompts, model), _echoes(asked, prompts, model))
    return _job(asked, prompts, writer, continues_prompt=True)


def _job(
    asked: GenerationFields,
    prompts: Sequence[GenerationRequest],
    writer: Writer,
    *,
    continues_prompt: bool,
) -> Job:
    options = asked.stream_options
    job = Job(
        choices_of(prompts, asked.n, is_stream=asked.stream),
        writer,
        asked.stream,
        continues_prompt,
        asked_field(asked.response_format, asked.structured_outputs),
        len(prompts),
    )
    if options is None or not options.include_obfuscation:
        return job
    return replace(job, sealed=sealing(asked.model))


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


def _head(
    asked: ChatCompletionRequest | CompletionRequest,
    prompts: Sequence[GenerationRequest],
    model: ServedModel,
) -> AnswerHead:
    options = asked.stream_options
    request = prompts[0]
    return AnswerHead(
        id=request.request_id,
        created=int(time.time()),
        model=asked.model,
        seed=request.sampling.seed,
        tokenizer=model.tokenizer,
        prompt_lens=tuple(len(prompt.prompt_ids) for prompt in prompts),
        choices_per_prompt=asked.n,
        num_logprobs=request.sampling.num_logprobs,
        num_prompt_logprobs=-1 if asked.prompt_logprobs is None else asked.prompt_logprobs,
        include_usage=options is not None and options.wants_usage,
        has_continuous_usage=options is not None and options.continuous_usage_stats,
    )
