"""Token ids of prompts. What cannot fit in the context window is refused before it is tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deployments.api.schemas.chat_fields import Prediction
from deployments.api.schemas.strict_fields import shown
from models.protocol.errors import ContextTooLong, InvalidRequest
from models.text.tokenizer import Tokenizer
from router.predicted_text import PredictedText

_END_CHARS = 128  # more than a template writes after the last message


class Model(Protocol):
    """What prompts depend on."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the served model."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens of its context window."""
        ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a conversation up to the assistant's next turn, and the end of its text."""

    ids: list[int]
    end: str


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    model: Model,
) -> ChatPrompt:
    """The prompt of messages and tools as the chat template wants them, with its other settings.

    Raises:
        ContextTooLong: it must be more tokens than the context window has.
        InvalidRequest: the chat template refuses the messages.
    """
    tokenizer = model.tokenizer
    pieces = tokenizer.chat_pieces(messages, tools, settings)
    _check_text(pieces, tokenizer, model.max_model_len, "messages")
    return ChatPrompt(tokenizer.encode_pieces(pieces), pieces[-1][-_END_CHARS:])


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
    """What the answer is predicted to be, ready to be drafted from; None: nothing.

    Raises:
        InvalidRequest: it is longer than any answer can be.
    """
    if prediction is None or not prediction.content:
        return None
    text, field = prediction.content, "prediction.content"
    least = tokenizer.least_tokens(len(text.encode()))
    ids = [] if least > max_model_len else tokenizer.encode_piece(text)
    if (num_tokens := max(least, len(ids))) > max_model_len:
        raise InvalidRequest(
            f"{field}: at most {max_model_len} tokens (max_model_len) are allowed (got "
            f"{'at least ' if not ids else ''}{num_tokens})",
            param=field,
        )
    return PredictedText(ids)


def checked_ids(
    token_ids: list[int], tokenizer: Tokenizer, max_model_len: int, param: str
) -> list[int]:
    """Ids that a client has sent as a prompt; more than fit, which are refused by their number, are
    not looked at.

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


def _check_text(texts: Sequence[str], tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    least = tokenizer.least_tokens(num_bytes)
    if least >= max_model_len:
        raise ContextTooLong(
            f"{param}: this model's maximum context length is {max_model_len} tokens, but the "
            f"prompt of {num_bytes} bytes has at least {least}; shorten the prompt",
            param=param,
        )
