"""Turns a validated body into requests for the router; every refusal names field, limit and value.

Nothing here touches the network, and nothing here waits. `prepare_*` tokenise and apply the
limits that come from the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deployments.api.history.turns import turns_of
from deployments.api.lookahead.asked import lookahead_of, rule_of
from deployments.api.prompts import (
    chat_prompt,
    checked_ids,
    choice_ids,
    predicted_text,
    text_ids,
    text_prefix_key,
)
from deployments.api.sampling_terms import sampling_of
from deployments.api.schemas.grammar_fields import asked_constraint
from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from deployments.api.schemas.sampling_defaults import SamplingDefaults, with_defaults
from deployments.api.schemas.strict_fields import shown, wrong_field
from deployments.api.schemas.tool_fields import check_tools
from deployments.api.turns.asked_turn import AskedTurn, asked_text, asked_turn
from models.protocol.errors import ContextTooLong, InvalidRequest, UnknownModel
from models.protocol.messages import Verification
from models.text.tokenizer import Tokenizer
from models.text.tools.prompt import TurnFormats
from router.predicted_text import PredictedText
from router.types import GenerationRequest, SpeculationSettings

Asked = TypeVar("Asked", bound=GenerationFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model of this server, and what a request to it may ask for."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int  # tokens, prompt and completion together
    created: int  # Unix time, seconds
    default_max_tokens: int  # when the request does not say
    max_tokens_limit: int
    max_num_speculative_tokens: int
    max_choices: int  # answers to one request, of all its prompts; each a session of its own
    max_choices_at_once: int  # choices that run or wait for a place at once
    max_logprob_entries: int  # in one answer, see `jobs.py`
    verification: Verification  # when the request does not say
    max_stop_strings: int = 16
    max_stop_chars: int = 256  # each; text is held back up to this length
    formats: TurnFormats = field(default_factory=TurnFormats)  # for turns with tools or reasoning
    drafters: tuple[str, ...] = ()  # that a request may name
    adapters: tuple[str, ...] = ()  # of it, that a request may name as its model
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)

    def check_name(self, name: str) -> None:
        """Check that a client means this model, or an adapter of it.

        Raises:
            UnknownModel: it asks for another one.
        """
        if name != self.name and name not in self.adapters:
            there = ", ".join(map(shown, (self.name, *self.adapters)))
            raise UnknownModel(
                f"model {shown(name)} is not served here; this server has {there}", param="model"
            )


def prepare_turn(
    request: ChatCompletionRequest, model: ServedModel, request_id: str
) -> tuple[GenerationRequest, AskedTurn]:
    """Tokenise a conversation, and say what the turn after it may be.

    If `tool_choice` is none, the model does not see the tools.

    Raises:
        InvalidRequest: see `_prepared`; or the chat template refuses the messages.
    """
    request = _checked(request, model)
    check_tools(request.tools, request.tool_choice)
    shown_tools = [] if request.tool_choice == "none" else request.tools
    messages, tools = model.formats.prompted(
        turns_of(request.messages),
        [tool.as_template_reads_it() for tool in shown_tools],
    )
    asked, tokens_param = request.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, tokens_param = request.max_tokens, "max_tokens"
    elif request.max_tokens not in (None, asked):
        raise InvalidRequest(
            f"max_tokens ({request.max_tokens}) and max_completion_tokens ({asked}) differ; "
            "send one of them",
            param="max_tokens",
        )
    settings = request.template_settings
    prompt = chat_prompt(messages, tools, settings, model.tokenizer, model.max_model_len)
    _check_no_tokens(asked, tokens_param, request)
    max_tokens = _max_tokens(asked, len(prompt.ids), model, "messages", tokens_param)
    turn = asked_turn(request, model.formats, model.tokenizer, prompt.end)
    prediction = predicted_text(request.prediction, model.tokenizer, model.max_model_len)
    prompts = [(prompt.ids, max_tokens)]
    [prepared] = _prepared(request, model, request_id, turn, prompts, prediction)
    return replace(prepared, prefix_key=prompt.prefix_key), turn


def prepare_completions(
    request: CompletionRequest, model: ServedModel, request_id: str
) -> tuple[list[GenerationRequest], AskedTurn]:
    """Tokenise raw prompts, in which special tokens count; or take their token ids.

    A request for each prompt, all with the same id and seed.

    Raises:
        InvalidRequest: see `_prepared`; or a token id is outside the vocabulary.
    """
    num_prompts = len(request.prompt)
    request = _checked(request, model, num_prompts)
    _check_no_tokens(request.max_tokens, "max_tokens", request)
    prompts: list[tuple[list[int], int]] = []
    for index, prompt in enumerate(request.prompt):
        param = f"prompt[{index}]" if num_prompts > 1 else "prompt"
        if isinstance(prompt, str):
            ids = text_ids(prompt, model.tokenizer, model.max_model_len, param)
        else:
            ids = checked_ids(prompt, model.tokenizer, model.max_model_len, param)
        prompts.append((ids, _max_tokens(request.max_tokens, len(ids), model, param, "max_tokens")))
    turn = asked_text(asked_constraint(request.response_format, request.structured_outputs))
    prepared = _prepared(request, model, request_id, turn, prompts)
    keys = (text_prefix_key(ids) for ids, _ in prompts)
    return [replace(one, prefix_key=key) for one, key in zip(prepared, keys, strict=True)], turn


def _check_choices(n: int, model: ServedModel, num_prompts: int) -> None:
    limit = model.max_choices
    if n > limit:
        raise wrong_field("n", f"at most {limit} choices are allowed (got {n})")
    if n * num_prompts > limit:
        raise wrong_field(
            "prompt",
            f"at most {limit} choices in all are allowed "
            f"(got {n * num_prompts}: {num_prompts} prompts with n {n})",
        )


def _checked(request: Asked, model: ServedModel, num_prompts: int = 1) -> Asked:
    """Check what needs no prompt, and fill in the model's defaults."""
    model.check_name(request.model)
    _check_stream_options(request)
    _check_choices(request.n, model, num_prompts)
    return with_defaults(request, model.sampling)


def _prepared(
    request: GenerationFields,
    model: ServedModel,
    request_id: str,
    turn: AskedTurn,
    prompts: Sequence[tuple[list[int], int]],
    prediction: PredictedText | None = None,
) -> list[GenerationRequest]:
    """Return a request for each prompt, given with its most tokens; apply the config's limits.

    Raises:
        InvalidRequest: a limit is exceeded, or fields contradict each other.
    """
    tokenizer = model.tokenizer
    sampling = sampling_of(request, tokenizer, rule_of(request, model.verification))
    stop, speculation = _checked_stop(request.stop, model), _speculation(request, model)
    prepared = []
    for prompt_ids, max_tokens in prompts:
        _check_min_tokens(request, max_tokens)
        # A raw prompt's text goes on; an answer's begins anew.
        after = prompt_ids if isinstance(request, CompletionRequest) else ()
        lookahead = lookahead_of(request, tokenizer, after, turn.shown_ids)
        choices = () if lookahead else choice_ids(request, tokenizer, after)
        if choices and turn.turn is not None:
            _check_masked(request)
            choices = ()
        prepared.append(
            GenerationRequest(
                request_id=request_id,
                prompt_ids=tuple(prompt_ids),
                sampling=sampling,
                eos_ids=tokenizer.eos_ids,
                max_tokens=max_tokens,
                stop=stop,
                grammar=None if choices else turn.grammar,
                choices=choices,
                ignore_eos=request.ignore_eos,
                stop_token_ids=tuple(request.stop_token_ids),
                includes_stop=request.include_stop_str_in_output,
                cache_salt=request.cache_salt or "",
                adapter="" if request.model == model.name else request.model,
                speculation=speculation,
                lookahead=lookahead,
                prediction=prediction,
                is_mostly_free=turn.turn is not None and turn.turn.begins_free,
            )
        )
    return prepared


def _check_min_tokens(request: GenerationFields, max_tokens: int) -> None:
    if request.min_tokens > max_tokens:
        raise wrong_field(
            "min_tokens", f"must be at most max_tokens, {max_tokens} (got {request.min_tokens})"
        )


def _check_masked(request: GenerationFields) -> None:
    """Check that choices may be masked, as they are beside tools and behind a reasoning block."""
    outputs = request.structured_outputs
    for name in ("choice_sampling", "choice_probabilities"):
        if outputs is not None and name in outputs.model_fields_set:
            raise wrong_field(
                f"structured_outputs.{name}",
                f"choices beside tools or behind a reasoning block are "
                f"masked, so they have no {name} (got {shown(getattr(outputs, name))})",
            )


def _check_stream_options(request: GenerationFields) -> None:
    options = request.stream_options
    if options is not None and options.asks and not request.stream:
        raise InvalidRequest(
            "stream_options is only allowed with stream: true", param="stream_options"
        )


def _check_no_tokens(asked: int | None, param: str, request: GenerationFields) -> None:
    """Check that something is asked for: the prompt's logprobs, or the prompt itself."""
    echoes = isinstance(request, CompletionRequest) and request.echo
    if asked == 0 and not echoes and request.prompt_logprobs is None:
        beside = "prompt_logprobs"
        if isinstance(request, CompletionRequest):
            beside = "echo or prompt_logprobs"
        raise wrong_field(param, f"must be at least 1, or 0 with {beside} (got 0)")


def _max_tokens(
    asked: int | None,
    num_prompt_tokens: int,
    model: ServedModel,
    prompt_param: str,
    tokens_param: str,
) -> int:
    """Completion tokens to generate; the params are the fields as the client spelt them.

    Values above the operator's limits are refused. Clients do not know the room left in the context
    window. So more is cut to it, as OpenAI's clients expect.

    Raises:
        InvalidRequest: there is no prompt, or more is asked for than allowed.
        ContextTooLong: the prompt leaves no room in the context window.
    """
    if num_prompt_tokens == 0:
        raise wrong_field(prompt_param, "the prompt has no tokens")
    limit = model.max_tokens_limit
    if asked is not None and limit < model.max_model_len and asked > limit:
        raise wrong_field(tokens_param, f"at most {limit} are allowed (got {asked})")
    room = model.max_model_len - num_prompt_tokens  # with 0 tokens a pass needs a place too
    if room < 1:
        # "maximum context length is": OpenAI's words, by which clients know this error.
        raise ContextTooLong(
            f"{prompt_param}: this model's maximum context length is {model.max_model_len} tokens, "
            f"but the prompt has {num_prompt_tokens} and leaves no room for an answer; shorten the "
            "prompt",
            param=prompt_param,
        )
    if asked is None:
        return min(model.default_max_tokens, limit, room)
    return min(asked, room)


def _checked_stop(stop: list[str], model: ServedModel) -> tuple[str, ...]:
    if len(stop) > model.max_stop_strings:
        raise wrong_field(
            "stop", f"at most {model.max_stop_strings} strings are allowed (got {len(stop)})"
        )
    longest = max(map(len, stop), default=0)
    if longest > model.max_stop_chars:
        raise wrong_field(
            "stop", f"at most {model.max_stop_chars} characters each are allowed (got {longest})"
        )
    return tuple(stop)


def _speculation(request: GenerationFields, model: ServedModel) -> SpeculationSettings:
    asked = request.speculation
    limit = model.max_num_speculative_tokens
    if asked.k is not None and asked.k > limit:
        raise wrong_field("speculation.k", f"at most {limit} (got {asked.k})")
    return SpeculationSettings(
        enabled=asked.enabled,
        num_speculative_tokens=asked.k,
        drafter=asked.drafter,
        draft_sample_method=asked.draft_sample_method,
        disable_by_batch_size=asked.disable_by_batch_size or 0,
        details=asked.details,
        compare=asked.compare,
    )
