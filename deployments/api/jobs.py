"""From a validated body to a job: what is to run for it, and how its answer is written.

Pure computing, and for a long body a good deal of it: the routes do it outside the event loop.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from deployments.api.choices import choices_of
from deployments.api.grammar_fields import asked_field
from deployments.api.openai import ChatCompletionRequest, CompletionRequest, GenerationFields
from deployments.api.requests import ServedModel, prepare_chat, prepare_completion
from deployments.api.writers import AnswerHead, ChatWriter, Echo, TextWriter, Writer
from router.generation import GenerationRequest


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to run, and how its answer is written."""

    requests: list[GenerationRequest]  # one for each choice
    writer: Writer
    is_stream: bool
    after: tuple[int, ...]  # ids whose text the answer continues
    grammar_field: str | None  # that constrains the answer, as the client spelt it


def chat_job(asked: ChatCompletionRequest, model: ServedModel) -> Job:
    """The job of POST /v1/chat/completions; raises what refuses it."""
    request = prepare_chat(asked, model, f"chatcmpl-{uuid.uuid4().hex}")
    writer = ChatWriter(_head(asked, request, model))
    requests = choices_of(request, asked.n, is_stream=asked.stream)
    return Job(requests, writer, asked.stream, (), _grammar_field(asked))


def completion_job(asked: CompletionRequest, model: ServedModel) -> Job:
    """The job of POST /v1/completions; raises what refuses it."""
    request = prepare_completion(asked, model, f"cmpl-{uuid.uuid4().hex}")
    writer = TextWriter(_head(asked, request, model), _echo(asked, request, model))
    requests = choices_of(request, asked.n, is_stream=asked.stream)
    return Job(requests, writer, asked.stream, request.prompt_ids, _grammar_field(asked))


def _echo(asked: CompletionRequest, request: GenerationRequest, model: ServedModel) -> Echo | None:
    if not asked.echo:
        return None
    prompt = asked.prompt
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
    return Echo(text=text, token_ids=request.prompt_ids)


def _grammar_field(asked: GenerationFields) -> str | None:
    return asked_field(asked.response_format, asked.structured_outputs)


def _head(
    asked: ChatCompletionRequest | CompletionRequest, request: GenerationRequest, model: ServedModel
) -> AnswerHead:
    options = asked.stream_options
    return AnswerHead(
        id=request.request_id,
        created=int(time.time()),
        model=asked.model,
        seed=request.sampling.seed,
        tokenizer=model.tokenizer,
        num_logprobs=request.sampling.num_logprobs,
        num_prompt_logprobs=-1 if asked.prompt_logprobs is None else asked.prompt_logprobs,
        include_usage=options is not None and options.include_usage,
    )
