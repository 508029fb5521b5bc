"""Token ids of prompts, and of choices behind them.

A prompt that cannot fit in the context window is refused before it is tokenised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.api.schemas.chat_fields import Prediction
from deployments.api.schemas.grammar_fields import naming_field
from deployments.api.schemas.requests import GenerationFields
from deployments.api.schemas.strict_fields import shown, wrong_field
from models.grammar.choice import checked_choices
from models.grammar.limits import refuse
from models.protocol.errors import ContextTooLong, InvalidRequest
from models.text.tokenizer import Tokenizer
from router.predicted_text import PredictedText

_LEAST_PREFIX_TOKENS = 256  # a shorter prefill costs less than a fuller batch
_END_CHARS = 128  # more than a template writes after the last message


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a conversation up to the assistant's next turn, and the end of its text.

    All turns of a chat have the same `prefix_key`.
    """

    ids: list[int]
    end: str
    prefix_key: str


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer,
    max_model_len: int,
) -> ChatPrompt:
    """Render messages and tools by the chat template, with its other settings.

    Raises:
        ContextTooLong: it must be more tokens than the context window has.
        InvalidRequest: the chat template refuses the messages.
    """
    pieces = tokenizer.chat_pieces(messages, tools, settings)
    _check_text(pieces, tokenizer, max_model_len, "messages")
    ids = tokenizer.encode_pieces(pieces)
    key = _prefix_key(len(ids), [_first_turns(messages), tools])
    return ChatPrompt(ids, pieces[-1][-_END_CHARS:], key)


def text_prefix_key(prompt_ids: Sequence[int]) -> str:
    """Return the key of a raw prompt for the choice of a replica, see `_prefix_key`."""
    return _prefix_key(len(prompt_ids), list(prompt_ids[:_LEAST_PREFIX_TOKENS]))


def text_ids(text: str, tokenizer: Tokenizer, max_model_len: int, param: str) -> list[int]:
    """Ids of a raw prompt; `param` is what refusals call it.

    Raises:
        ContextTooLong: they must be more than the context window has.
    """
    _check_text([text], tokenizer, max_model_len, param)
    return tokenizer.encode(text)


def predicted_text(
    prediction: Prediction | None, tokenizer: Tokenizer, max_model_len: int
) -> PredictedText | None:
    """Return the predicted text of the answer, ready to be drafted from; None if there is none.

    Raises:
        InvalidRequest: it is longer than any answer can be.
    """
    if prediction is None or not prediction.content:
        return None
    text, field = prediction.content, "prediction.content"
    least = tokenizer.least_tokens(len(text.encode()))
    ids = [] if least > max_model_len else tokenizer.encode_piece(text)
    if (num_tokens := max(least, len(ids))) > max_model_len:
        raise wrong_field(
            field,
            f"at most {max_model_len} tokens (max_model_len) are allowed (got "
            f"{'at least ' if not ids else ''}{num_tokens})",
        )
    return PredictedText(ids)


def checked_ids(
    token_ids: list[int], tokenizer: Tokenizer, max_model_len: int, param: str
) -> list[int]:
    """Return the ids that a client has sent as a prompt.

    Ids beyond the limit are refused by their number and are not looked at.

    Raises:
        InvalidRequest: one is outside the vocabulary.
    """
    if len(token_ids) >= max_model_len:
        return token_ids
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest(
                f"{param}[{index}]: token id {shown(token_id)} is outside the vocabulary of "
                f"{tokenizer.vocab_size}",
                param=param,
            )
    return token_ids


def choice_ids(
    request: GenerationFields, tokenizer: Tokenizer, prompt_ids: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Ids of the choices that are weighed whole; none where the request asks for no such.

    A choice counts with the ids that the tokenizer gives it, not with other ids of the same text.

    Args:
        request: with its fields checked each for itself.
        tokenizer: of the served model.
        prompt_ids: what the choices follow.

    Raises:
        UnsupportedGrammar: the list is over a limit, or the tokenizer has no ids for a choice.
        InvalidRequest: a field forbids tokens, which leaves no choice what it is.
    """
    outputs, field = request.structured_outputs, "structured_outputs.choice"
    if outputs is None or not outputs.exact_choices:
        return ()
    for name, is_given in (
        ("min_tokens", request.min_tokens > 0),
        ("bad_words", bool(request.bad_words)),
    ):
        if is_given:
            raise wrong_field(
                name,
                f"not with {field}, whose choices are weighed whole; leave it out, or set "
                "structured_outputs.choice_sampling to 'masked'",
            )
    with naming_field(field):
        choices = checked_choices(outputs.exact_choices)
        return tuple(
            _answer_ids(choice, f"[{index}]", tokenizer, prompt_ids)
            for index, choice in enumerate(choices)
        )


def _answer_ids(
    choice: str, path: str, tokenizer: Tokenizer, prompt_ids: Sequence[int]
) -> tuple[int, ...]:
    ids = tokenizer.encode_answer(choice, prompt_ids)
    if ids is None:
        refuse(
            "the model's tokenizer cannot give this text behind the prompt; "
            "structured_outputs.choice_sampling 'masked' may",
            path=path,
        )
    return tuple(ids)


def _prefix_key(num_tokens: int, begins: object) -> str:
    """Return the same key for prompts that begin alike, as JSON; "" where prefill is short."""
    if num_tokens < _LEAST_PREFIX_TOKENS:
        return ""
    return hashlib.blake2b(json.dumps(begins, default=str).encode(), digest_size=8).hexdigest()


def _first_turns(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages up to the first of the user: what all turns of a chat begin with."""
    num = next((n for n, one in enumerate(messages, 1) if one.get("role") == "user"), len(messages))
    return messages[:num]


def _check_text(texts: Sequence[str], tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    least = tokenizer.least_tokens(num_bytes)
    if least >= max_model_len:
        raise ContextTooLong(
            f"{param}: this model's maximum context length is {max_model_len} tokens, but the "
            f"prompt of {num_bytes} bytes has at least {least}; shorten the prompt",
            param=param,
        )
