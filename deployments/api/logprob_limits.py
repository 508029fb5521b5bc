"""How many logprobs one answer may hold.

An answer has an entry for the token at a position and one for each of the likeliest in its place:
(1 + top) at every position of its choices and, where they are asked for, of its prompts. Each is
about 75 bytes of JSON, which router and proxies hold until the client has taken them. So this
limits what a request may cost others in memory and time, also one of a client that does not read:
Serve's proxy takes an answer from us at once and keeps what the client has not taken until
`request_timeout_s`. How many such clients there are is limited by nothing here: that is for API
keys and for the balancer in front, which sees the connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from models.protocol.errors import InvalidRequest
from router.types import GenerationRequest


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
    """Check what is asked for against the limit; `prompts` has a request for each prompt.

    Raises:
        InvalidRequest: it is more; names the field that asks for the most.
    """
    parts = _parts(asked, prompts)
    total = sum(part.num_entries for part in parts)
    if total <= limit:
        return
    most = max(parts, key=lambda part: part.num_entries)
    raise InvalidRequest(
        f"{most.field}: at most {limit} logprobs (max_logprob_entries) are allowed in an answer "
        f"(got {total}, of these {most.num_positions} positions with {most.per_position} each)",
        param=most.field,
    )


def _parts(
    asked: ChatCompletionRequest | CompletionRequest, prompts: Sequence[GenerationRequest]
) -> list[_Part]:
    sampling = prompts[0].sampling
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
    if sampling.num_logprobs >= 0:
        parts.append(_Part(field, num_generated, 1 + sampling.num_logprobs))
    if asked.prompt_logprobs is not None:
        parts.append(_Part("prompt_logprobs", num_prompt, 1 + asked.prompt_logprobs))
    return parts
