"""Turns a body's `lookahead` into the router's settings; fields that conflict are refused by name.

Candidates are the likeliest tokens that the grammar allows, before any other processor: they know
no penalty and no bias. The text is not the target's own, so fields that explain the target's text
are refused. Choices are masked, as they are beside tools, because a reward's decision cannot be
weighed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence

from deployments.api.lookahead.fields import LookaheadOptions
from deployments.api.schemas.grammar_fields import StructuredOutputs
from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from deployments.api.schemas.strict_fields import shown, wrong_field
from models.protocol.rules import COUPLED, REJECTION
from models.text.tokenizer import Tokenizer
from router.types import LookaheadSettings

_MAX_REWARD_BYTES = 65_536
_RULES = {"hard": COUPLED.name, "speculative_sampling": REJECTION.name}
_LEFT_ALONE = (  # fields that must keep their defaults
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("min_tokens", "bad_words", "prompt_logprobs"),
)
_LEFT_ALONE_BY_CHAT = ("logprobs", "top_logprobs", "prediction")
_LEFT_ALONE_IN_TEXT = ("logprobs", "echo")
_LEFT_ALONE_IN_SPECULATION = (
    *("enabled", "k", "verification", "details", "compare"),
    *("draft_sample_method", "disable_by_batch_size"),
)


def lookahead_of(
    request: GenerationFields,
    tokenizer: Tokenizer,
    after: Sequence[int],
    shown_ids: Collection[int],
) -> LookaheadSettings | None:
    """Return the look-ahead that the request asks for; None if there is none.

    Args:
        request: the body.
        tokenizer: of the model.
        after: token ids whose text the answer continues.
        shown_ids: special tokens that are part of the text, which the reward reads as written.

    Raises:
        InvalidRequest: fields do not go together, or the reward is too large.
    """
    asked = request.lookahead
    if asked is None or asked.method == "off":
        return None
    _check_alone(request)
    if asked.verification == "speculative_sampling" and request.temperature == 0.0:
        raise wrong_field(
            "lookahead.verification", "speculative_sampling needs a temperature above 0 (got 0)"
        )
    return LookaheadSettings(
        **asked.model_dump(exclude={"reward", "verification", "budget", "seed"}),
        reward=_reward(asked),
        text_of=_text_reader(tokenizer, after, shown_ids),
        budget=asked.budget or 0,
        seed=None if asked.seed is None else asked.seed % 2**64,
    )


def rule_of(request: GenerationFields, default: str) -> str:
    """Return the rule by which drafts are verified: the look-ahead's, if there is one."""
    asked = request.lookahead
    return default if asked is None or asked.method == "off" else _RULES[asked.verification]


def _reward(asked: LookaheadOptions) -> str:
    if asked.reward is None:
        raise wrong_field("lookahead.reward", f"is required with method {asked.method}")
    text = json.dumps(asked.reward, ensure_ascii=False)
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > _MAX_REWARD_BYTES:
        raise wrong_field(
            "lookahead.reward", f"at most {_MAX_REWARD_BYTES} bytes are allowed (got {num_bytes})"
        )
    return text


def _text_reader(
    tokenizer: Tokenizer, after: Sequence[int], shown_ids: Collection[int]
) -> Callable[[Sequence[int]], str]:
    """Return a function that gives the text of generated tokens."""

    def text_of(token_ids: Sequence[int]) -> str:
        detokenizer = tokenizer.detokenizer(after, shown_ids)
        return detokenizer.push(token_ids) + detokenizer.flush()

    return text_of


def _check_alone(request: GenerationFields) -> None:
    for field, value, wanted in _set_fields(request):
        raise wrong_field(
            field, f"does not go with lookahead, leave it at {shown(wanted)} (got {shown(value)})"
        )


def _set_fields(request: GenerationFields) -> Iterator[tuple[str, object, object]]:
    """Fields that would have no effect, or a wrong one: name, value, and the value for none."""
    names: tuple[str, ...] = _LEFT_ALONE
    if isinstance(request, ChatCompletionRequest):
        names += _LEFT_ALONE_BY_CHAT
    elif isinstance(request, CompletionRequest):
        names += _LEFT_ALONE_IN_TEXT
        if len(request.prompt) > 1:
            yield "prompt", f"{len(request.prompt)} prompts", "one prompt"
    for name in names:
        value = getattr(request, name)
        default = type(request).model_fields[name].get_default(call_default_factory=True)
        if value != default:
            yield name, request.model_dump(include={name}, by_alias=True)[name], default
    yield from _weighing_fields(request.structured_outputs)
    options = request.speculation
    for name in _LEFT_ALONE_IN_SPECULATION:
        value, default = getattr(options, name), type(options).model_fields[name].default
        if value != default:
            yield f"speculation.{name}", value, default


def _weighing_fields(
    outputs: StructuredOutputs | None,
) -> Iterator[tuple[str, object, object]]:
    if outputs is not None and outputs.exact_choices:
        if "choice_sampling" in outputs.model_fields_set:
            yield "structured_outputs.choice_sampling", "exact", "masked"
        if outputs.choice_probabilities:
            yield "structured_outputs.choice_probabilities", True, False
