"""From the bytes of a body to a request for the router; every refusal names field, limit and value.

Nothing here touches the network, and nothing here waits. `parse` reads and validates, `prepare_*`
tokenise and apply the limits that come from the config. Unknown fields are refused; OpenAI's
fields that are not offered are accepted with the values that ask for nothing (`openai.py`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deployments.openai import (
    IGNORED_FIELDS,
    NEUTRAL_VALUES,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from models.errors import ContextTooLong, InvalidRequest, UnknownModel
from models.messages import Grammar, Sampling, Verification
from models.tokenizer import Tokenizer
from router.generation import GenerationRequest, SpeculationSettings

Request = TypeVar("Request", bound=GenerationFields)

_MAX_SHOWN = 80  # characters of a refused value that the message repeats
_COLDEST = 1e-5  # lower temperatures are greedy, as in vLLM
_RANDOM_SEED_BITS = 53  # a random seed survives clients that read JSON numbers as doubles
_STRUCTURED_LATER = ("regex", "choice", "grammar", "structural_tag", "json_object")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model behind this server, and what a request to it may ask for."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int  # tokens, prompt and completion together
    created: int  # Unix time, seconds
    default_max_tokens: int = 256  # when the request does not say
    max_tokens_limit: int = 4096
    max_num_speculative_tokens: int = 8
    verification: Verification = "coupled"  # when the request does not say
    max_stop_strings: int = 16
    max_stop_chars: int = 256  # each; text is held back up to this length

    def check_name(self, name: str) -> None:
        """Check that a client means this model.

        Raises:
            UnknownModel: it asks for another one.
        """
        if name != self.name:
            raise UnknownModel(
                f"model {_shown(name)} is not served here; this server has {_shown(self.name)}",
                param="model",
            )


# --- reading ------------------------------------------------------------------------------------


def parse(body: bytes, schema: type[Request]) -> Request:
    """Read a body.

    Raises:
        InvalidRequest: not JSON, an unknown or unsupported field, a wrong type, a value out of
            range; `param` is the field's path.
    """
    fields = _screened(_json_object(body), schema)
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        _raise_invalid(error)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        # Decoded here and strictly: `json.loads` guesses UTF-16 and 32 and lets surrogates pass.
        text = body.decode("utf-8-sig")
        content = json.loads(text, parse_constant=_refuse_constant)
        # Lone surrogates (JSON can spell them) are no text: nothing behind here can encode them.
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _screened(fields: Mapping[str, Any], schema: type[GenerationFields]) -> dict[str, Any]:
    """The fields the schema is to see: no nulls, nothing ignored, nothing neutral."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in IGNORED_FIELDS:
            continue
        if name in schema.model_fields or name not in NEUTRAL_VALUES:
            kept[name] = value
        elif not any(_same(value, neutral) for neutral in NEUTRAL_VALUES[name]):
            raise InvalidRequest(
                f"{name}: {_shown(value)} is not supported by this server",
                param=name,
                code="unsupported_parameter",
            )
    if isinstance(messages := kept.get("messages"), list):
        kept["messages"] = [_without_empty(item) for item in messages]
    for name in ("stream_options", "speculation", "response_format"):
        if isinstance(options := kept.get(name), dict):
            kept[name] = {key: value for key, value in options.items() if value is not None}
    if isinstance(outputs := kept.get("structured_outputs"), dict):
        kept["structured_outputs"] = _json_only(outputs)
    response_format = kept.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") == "json_object":
        raise InvalidRequest(
            "response_format.type: 'json_object' is not supported, use 'json_schema'",
            param="response_format.type",
            code="unsupported_parameter",
        )
    return kept


def _same(value: object, neutral: object) -> bool:
    # 0 == False in Python, not in JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _without_empty(message: Any) -> Any:
    """Clients send back an answer's message with its empty fields (`tool_calls: null`)."""
    if not isinstance(message, dict):
        return message
    return {
        name: value
        for name, value in message.items()
        if name in ("role", "content") or (value is not None and value != [])
    }


def _json_only(outputs: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in outputs.items() if value is not None}
    for name in _STRUCTURED_LATER:
        if name in present:
            raise InvalidRequest(
                f"structured_outputs.{name} is not supported, only structured_outputs.json",
                param=f"structured_outputs.{name}",
                code="unsupported_parameter",
            )
    if isinstance(text := present.get("json"), str):
        try:
            present["json"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"structured_outputs.json is not valid JSON: {error}",
                param="structured_outputs.json",
            ) from None
    return present


def _raise_invalid(error: ValidationError) -> NoReturn:
    """Several faults make one message; the first names the `param`."""
    faults = error.errors(include_url=False)
    shown = [_describe(fault) for fault in faults[:3]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    raise InvalidRequest("; ".join(shown), param=_path(faults[0])) from None


def _describe(fault: ErrorDetails) -> str:
    path = _path(fault)
    match fault["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field"
        case "missing":
            return f"{path}: is required"
        case "refused":
            return f"{path}: {fault['msg']}"
    reason = fault["msg"].replace("Input should be", "must be")
    return f"{path}: {reason} (got {_shown(fault['input'])})"


def _path(fault: ErrorDetails) -> str:
    path = ""
    for part in fault["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        text = "a value nested too deeply"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


# --- translating --------------------------------------------------------------------------------


def prepare_chat(
    request: ChatCompletionRequest, model: ServedModel, request_id: str
) -> GenerationRequest:
    """Tokenise a conversation.

    Raises:
        InvalidRequest: see `_prepare`; or the chat template refuses the messages.
    """
    model.check_name(request.model)
    messages = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        turn = {"role": role, "content": message.content}
        if message.name is not None:
            turn["name"] = message.name
        messages.append(turn)
    asked, tokens_param = request.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, tokens_param = request.max_tokens, "max_tokens"
    elif request.max_tokens not in (None, asked):
        raise InvalidRequest(
            f"max_tokens ({request.max_tokens}) and max_completion_tokens ({asked}) differ; "
            "send one of them",
            param="max_tokens",
        )
    prompt_ids = model.tokenizer.encode_chat(messages)
    max_tokens = _max_tokens(asked, len(prompt_ids), model, "messages", tokens_param)
    return _prepare(request, model, request_id, prompt_ids, max_tokens)


def prepare_completion(
    request: CompletionRequest, model: ServedModel, request_id: str
) -> GenerationRequest:
    """Tokenise a raw prompt, in which special tokens count; or take its token ids.

    Raises:
        InvalidRequest: see `_prepare`; or a token id is outside the vocabulary.
    """
    model.check_name(request.model)
    if isinstance(request.prompt, str):
        prompt_ids = model.tokenizer.encode(request.prompt)
    else:
        prompt_ids = request.prompt
        for index, token_id in enumerate(prompt_ids):
            if not 0 <= token_id < model.tokenizer.vocab_size:
                raise InvalidRequest(
                    f"prompt[{index}]: token id {token_id} is outside the vocabulary of "
                    f"{model.tokenizer.vocab_size}",
                    param="prompt",
                )
    max_tokens = _max_tokens(request.max_tokens, len(prompt_ids), model, "prompt", "max_tokens")
    return _prepare(request, model, request_id, prompt_ids, max_tokens)


def _prepare(
    request: GenerationFields,
    model: ServedModel,
    request_id: str,
    prompt_ids: list[int],
    max_tokens: int,
) -> GenerationRequest:
    """Apply the limits of the config.

    Raises:
        InvalidRequest: a limit is exceeded, or fields contradict each other.
    """
    _check_stream_options(request)
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(
            temperature=_temperature(request.temperature),
            top_p=request.top_p,
            top_k=max(request.top_k, 0),
            seed=_seed(request.seed),
        ),
        eos_ids=model.tokenizer.eos_ids,
        max_tokens=max_tokens,
        stop=_checked_stop(request.stop, model),
        grammar=_grammar(request),
        ignore_eos=request.ignore_eos,
        speculation=_speculation(request, model),
    )


def _check_stream_options(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options is only allowed with stream: true", param="stream_options"
        )


def _temperature(temperature: float) -> float:
    # Logits divided by less leave float32's range; the draw is greedy long before that.
    return 0.0 if temperature < _COLDEST else temperature


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(_RANDOM_SEED_BITS)
    return seed % 2**64  # negative ones count from the top


def _max_tokens(
    asked: int | None,
    num_prompt_tokens: int,
    model: ServedModel,
    prompt_param: str,
    tokens_param: str,
) -> int:
    """Completion tokens to generate; the params are the fields as the client spelt them.

    Raises:
        InvalidRequest: there is no prompt, or more is asked for than allowed.
        ContextTooLong: prompt and completion do not fit in the context window.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequest(f"{prompt_param}: the prompt has no tokens", param=prompt_param)
    if asked is not None and asked > model.max_tokens_limit:
        raise InvalidRequest(
            f"{tokens_param}: at most {model.max_tokens_limit} are allowed (got {asked})",
            param=tokens_param,
        )
    room = model.max_model_len - num_prompt_tokens
    wanted = 1 if asked is None else asked
    if room < wanted:
        raise ContextTooLong(
            f"{tokens_param if room > 0 else prompt_param}: the context window is "
            f"{model.max_model_len} tokens, but the prompt has {num_prompt_tokens} and "
            f"{tokens_param} is {'not given' if asked is None else asked}; "
            "shorten the prompt or ask for fewer tokens",
            param=tokens_param if room > 0 else prompt_param,
        )
    if asked is None:
        return min(model.default_max_tokens, model.max_tokens_limit, room)
    return asked


def _checked_stop(stop: list[str], model: ServedModel) -> tuple[str, ...]:
    if len(stop) > model.max_stop_strings:
        raise InvalidRequest(
            f"stop: at most {model.max_stop_strings} strings are allowed (got {len(stop)})",
            param="stop",
        )
    longest = max(map(len, stop), default=0)
    if longest > model.max_stop_chars:
        raise InvalidRequest(
            f"stop: at most {model.max_stop_chars} characters each are allowed (got {longest})",
            param="stop",
        )
    return tuple(stop)


def _grammar(request: GenerationFields) -> Grammar | None:
    schema: dict[str, Any] | None = None
    response_format = request.response_format
    if response_format is not None and response_format.type == "json_schema":
        if response_format.json_schema is None:
            raise InvalidRequest(
                "response_format.json_schema: is required with type 'json_schema'",
                param="response_format.json_schema",
            )
        schema = response_format.json_schema.schema_
    elif response_format is not None and response_format.json_schema is not None:
        raise InvalidRequest(
            "response_format.json_schema: is only allowed with type 'json_schema'",
            param="response_format.json_schema",
        )
    if request.structured_outputs is not None:
        if schema is not None:
            raise InvalidRequest(
                "response_format and structured_outputs both constrain the answer; send one",
                param="structured_outputs",
            )
        schema = request.structured_outputs.json_
    return None if schema is None else Grammar(kind="json_schema", text=json.dumps(schema))


def _speculation(request: GenerationFields, model: ServedModel) -> SpeculationSettings:
    asked = request.speculation
    limit = model.max_num_speculative_tokens
    if asked.k is not None and asked.k > limit:
        raise InvalidRequest(
            f"speculation.k: at most {limit} (got {asked.k})", param="speculation.k"
        )
    return SpeculationSettings(enabled=asked.enabled, num_speculative_tokens=asked.k)
