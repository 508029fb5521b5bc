"""A request's sampling fields as the engines take them; every refusal names field, limit, value."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from deployments.api.schemas.strict_fields import shown, wrong_field
from models.protocol.messages import Sampling, Verification
from models.text.tokenizer import Tokenizer

_COLDEST = 1e-5  # lower temperatures are greedy, as in vLLM
_RANDOM_SEED_BITS = 53  # a random seed survives clients that read JSON numbers as doubles


def sampling_of(
    request: GenerationFields, tokenizer: Tokenizer, verification: Verification
) -> Sampling:
    """Return the rules for sampling a request's tokens, and the logprobs to report.

    The details of rounds need logprobs too, whether the answer lists these or not.

    Args:
        request: with its own limits checked.
        tokenizer: of the served model.
        verification: the rule where the request names none.

    Raises:
        InvalidRequest: a token id is outside the vocabulary, or fields contradict each other.
    """
    vocab_size = tokenizer.vocab_size
    check_ids("logit_bias", (token_id for token_id, _ in request.logit_bias), vocab_size)
    check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    num_logprobs = asked_logprobs(request)
    return Sampling(
        temperature=_temperature(request.temperature),
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        seed=_seed(request.seed),
        verification=request.speculation.verification or verification,
        logit_bias=tuple(request.logit_bias),
        min_tokens=request.min_tokens,
        bad_words=bad_word_ids(request.bad_words, tokenizer),
        num_logprobs=max(num_logprobs, 0) if request.speculation.details else num_logprobs,
        num_prompt_logprobs=_num_prompt_logprobs(request),
    )


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Tokenise each word as at the start of a text, and as after a space.

    The form after a space is left out if it ends with the other form's tokens. Those forbid it
    already.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = tuple(tokenizer.encode_piece(word.lstrip()))
        spaced = tuple(tokenizer.encode_piece(" " + word.lstrip()))
        if bare:
            found[bare] = None
        if spaced and (not bare or spaced[-len(bare) :] != bare):
            found[spaced] = None
    return tuple(found)


def check_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Check that tokens are of the vocabulary.

    Raises:
        InvalidRequest: one is not.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise wrong_field(
                field, f"token id {shown(token_id)} is outside the vocabulary of {vocab_size}"
            )


def asked_logprobs(request: GenerationFields) -> int:
    """Return how many of the likeliest tokens the answer lists at each place; -1: no logprobs.

    Raises:
        InvalidRequest: fields contradict each other.
    """
    if isinstance(request, CompletionRequest):
        return -1 if request.logprobs is None else request.logprobs
    if not isinstance(request, ChatCompletionRequest):
        return -1
    if request.top_logprobs and not request.logprobs:
        raise wrong_field(
            "top_logprobs", f"only allowed with logprobs: true (got {request.top_logprobs})"
        )
    return request.top_logprobs or 0 if request.logprobs else -1


def _num_prompt_logprobs(request: GenerationFields) -> int:
    asked = -1
    if request.prompt_logprobs is not None:
        if request.stream:
            raise wrong_field("prompt_logprobs", "only allowed with stream: false")
        asked = request.prompt_logprobs
    if isinstance(request, CompletionRequest) and request.echo:
        return max(asked, asked_logprobs(request))  # an echoed prompt has its logprobs as well
    return asked


def _temperature(temperature: float) -> float:
    # Logits divided by less leave float32's range; sampling is greedy long before that.
    return 0.0 if temperature < _COLDEST else temperature


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(_RANDOM_SEED_BITS)
    return seed % 2**64  # negative ones count from the top
