"""Shapes of successful answers, as OpenAI has them; `api/writing/writers.py` fills them.

Answers carry two things that OpenAI does not have. `seed` lets a client repeat a request that named
none. `metrics` has `speculative_decoding` with vLLM's field names, whether or not anything was
drafted. A stream has both on the trailing usage event. If it has no such event, they are on the
event with the `finish_reason`.

If `speculation.details` is set, the rounds are there too (`api/writing/details_writer.py` writes
them).

A field that is UNSET is left out of the JSON, and None is written as null. Lists of logprobs are
None here: writers put their JSON into the place of `null` (`api/writing/json_chunks.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Required

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import TypedDict

from deployments.api.schemas.details import ChoiceDetails, LoosenedPart, loosened_parts
from deployments.api.schemas.logprobs import (
    ChatLogprobs,
    ChoiceProbability,
    PromptLogprobs,
    TextLogprobs,
)
from router.comparing import LENGTHS
from router.drafters.repeats.prediction import PREDICTION
from router.stats import DraftReplay
from router.types import Finished, LookaheadStats

ChatFinishReason = Literal["stop", "length", "tool_calls"]

_encoder = msgspec.json.Encoder()


class Shape(msgspec.Struct):
    """Base of all JSON objects that answers are or have."""

    def to_json(self) -> bytes:
        """Return the object as UTF-8 JSON."""
        return _encoder.encode(self)


class PromptTokensDetails(Shape):
    """The sources of the prompt's tokens."""

    cached_tokens: int  # found in the target's prefix cache when the request was admitted


class TokenCounts(Shape):
    """Tokens of one choice so far, on each event of a stream that asks for them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionTokensDetails(Shape):
    """The outcome of tokens that were drafted from a `prediction`, in all rounds.

    A token that was rejected in several rounds counts in each. They cost time and are not part of
    `completion_tokens`.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class LookaheadUsage(Shape):
    """The costs and results of look-ahead decoding."""

    target_passes: int  # verifications, and single steps of the text and of each roll-out
    draft_steps: int
    rollouts: int
    reward_calls: int
    states: dict[str, int]  # visits
    soft_satisfaction: float  # score of the whole text by its reward, from 0 to 1
    hard_satisfaction: bool  # True: the whole text meets the constraint
    budget_spent: bool  # the text's end was written plainly for that
    advice: list[str]  # settings to change, where it went wrong


class Usage(TokenCounts):
    """Tokens of one request."""

    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    lookahead: LookaheadUsage | UnsetType = UNSET  # of a text that a reward steered


class DraftComparison(Shape):
    """The tokens that one draft model would draft along the answer, each given all before it."""

    num_tokens: int  # tokens of the answer
    num_matched: int  # that it says as well
    tokens_per_round: list[float]  # [i]: were i + 1 tokens drafted in each round


class SpeculativeDecoding(Shape):
    """Figures of speculation, in vLLM's words.

    A step is a round that had a draft. If there was none (speculation off), the counts are 0, the
    rate is 0 and the length 1. `mean_acceptance_length` counts the target's own token of each step.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]  # [a]: steps in which a draft tokens were accepted
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_draft_tokens_by: dict[str, int]  # by the name of who drafted them
    num_accepted_draft_tokens_by: dict[str, int]
    num_guess_tokens: int  # sent to the draft model as a guess of its draft
    num_right_guess_tokens: int  # that it drafted too: each saved it a step
    num_ahead_tokens: int  # drafted while the target verified, before they were asked for
    num_spec_tokens: int  # the longest draft of a step: one less than the histogram is long
    drafts: dict[str, DraftComparison] | None  # by draft model; where it is asked for


class RoundTimes(Shape):
    """The durations of the request's rounds, milliseconds, summed over `num_rounds`."""

    num_rounds: int
    draft_ms: float
    verify_ms: float
    mask_ms: float
    queue_ms: float
    link_ms: float
    grammar_ms: float
    loop_ms: float
    emit_ms: float


class Metrics(Shape):
    """Measurements of one request."""

    speculative_decoding: SpeculativeDecoding
    rounds: RoundTimes
    num_loosened: int  # parts of schemas that were not enforced; the first of them are named
    loosened: list[LoosenedPart]
    tools_left_out: list[str] | UnsetType = UNSET  # kinds that /v1/responses does not serve


class CalledFunction(Shape):
    """The function to call, and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCall(Shape, kw_only=True):
    """A call that the client is to make."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Shape, kw_only=True):
    """The answer's message. `content` is null where the turn is calls and nothing else."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None  # OpenAI's shape requires it
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Shape, kw_only=True):
    """One choice of a chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason
    choice_probabilities: list[ChoiceProbability] | UnsetType = UNSET  # in the list's order
    token_ids: Sequence[int] | UnsetType = UNSET  # of all its text


class ChatCompletion(Shape, kw_only=True):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    seed: int
    metrics: Metrics
    speculation_details: list[ChoiceDetails] | UnsetType = UNSET


class FunctionDelta(TypedDict, total=False):
    """Some of a call's arguments, after its name."""

    name: str
    arguments: str


class ToolCallDelta(TypedDict, total=False):
    """Some of a call; its first one has id, type and the function's name."""

    index: Required[int]
    id: str
    type: Literal["function"]
    function: Required[FunctionDelta]


class ChatDelta(TypedDict, total=False):
    """An addition to a message: a role, some text, reasoning or a call, or nothing."""

    role: str
    content: str | None
    reasoning_content: str
    tool_calls: list[ToolCallDelta]


class ChatChunkChoice(Shape):
    """An addition to a choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    choice_probabilities: list[ChoiceProbability] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET  # since its event before


class ChatCompletionChunk(Shape, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    prompt_token_ids: Sequence[int] | UnsetType = UNSET  # on the first event of each choice
    usage: TokenCounts | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    speculation_details: list[ChoiceDetails] | UnsetType = UNSET


class TextChoice(Shape):
    """One choice of a completion; in a stream, its new text."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    choice_probabilities: list[ChoiceProbability] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET  # in a stream: on its first event
    token_ids: Sequence[int] | UnsetType = UNSET  # in a stream: since its event before


class Completion(Shape, kw_only=True):
    """Answer of POST /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenCounts | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    speculation_details: list[ChoiceDetails] | UnsetType = UNSET


class ModelCard(Shape, kw_only=True):
    """One served model, or an adapter of it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "outrider"
    max_model_len: int
    parent: str | None = None  # of an adapter: the model that it is for


class ModelList(Shape, kw_only=True):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class HealthStatus(Shape):
    """Answer of GET /health and /readyz; 503 with `unavailable`."""

    status: Literal["ok", "unavailable"]
    model: str
    reason: str  # for people
    round_ms: float  # the probe, milliseconds


class LiveStatus(Shape):
    """Answer of GET /livez."""

    status: Literal["ok"] = "ok"


class VersionStatus(Shape):
    """Answer of GET /version."""

    version: str


def counts_of(num_prompt_tokens: int, num_completion_tokens: int) -> TokenCounts:
    """Token counts in OpenAI's words."""
    return TokenCounts(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
    )


def usage_of(finished: Finished) -> Usage:
    """Count all tokens of a request in OpenAI's words."""
    stats, name = finished.speculation, PREDICTION.name
    num_accepted = stats.num_accepted_by.get(name, 0)
    return Usage(
        prompt_tokens=finished.num_prompt_tokens,
        completion_tokens=finished.num_completion_tokens,
        total_tokens=finished.num_prompt_tokens + finished.num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=finished.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=num_accepted,
            rejected_prediction_tokens=stats.num_drafted_by.get(name, 0) - num_accepted,
        ),
        lookahead=_lookahead_usage(finished.lookahead),
    )


def _lookahead_usage(ahead: LookaheadStats | None) -> LookaheadUsage | UnsetType:
    if ahead is None:
        return UNSET
    return LookaheadUsage(
        target_passes=ahead.num_target_passes,
        draft_steps=ahead.num_draft_steps,
        rollouts=ahead.num_rollouts,
        reward_calls=ahead.num_reward_calls,
        states=dict(ahead.states),
        soft_satisfaction=ahead.score,
        hard_satisfaction=ahead.is_met,
        budget_spent=ahead.is_budget_spent,
        advice=list(ahead.advice.values()),
    )


def metrics_of(finished: Finished) -> Metrics:
    """Measurements of one request in vLLM's words."""
    stats = finished.speculation
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=stats.mean_acceptance_length,
            draft_acceptance_rate=stats.draft_acceptance_rate,
            acceptance_histogram=list(stats.acceptance_histogram),
            num_spec_steps=stats.num_spec_steps,
            num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
            num_draft_tokens=stats.num_draft_tokens,
            num_draft_tokens_by=dict(stats.num_drafted_by),
            num_accepted_draft_tokens_by=dict(stats.num_accepted_by),
            num_guess_tokens=stats.num_guess_tokens,
            num_right_guess_tokens=stats.num_right_guess_tokens,
            num_ahead_tokens=stats.num_ahead_tokens,
            num_spec_tokens=stats.num_spec_tokens,
            drafts={name: _compared(each) for name, each in stats.replays.items()} or None,
        ),
        rounds=RoundTimes(num_rounds=stats.num_rounds, **dataclasses.asdict(stats.time)),
        num_loosened=len(finished.loosened),
        loosened=loosened_parts(finished.loosened),
    )


def _compared(replay: DraftReplay) -> DraftComparison:
    num_tokens = len(replay.matches)
    return DraftComparison(
        num_tokens=num_tokens,
        num_matched=sum(replay.matches),
        tokens_per_round=[num_tokens / len(replay.accepted(length)) for length in LENGTHS],
    )
