"""Token ids of prompts. What cannot fit in the context window is refused before it is tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deployments.api.bodies import shown
from deployments.api.schemas.prediction_fields import Prediction
from models.protocol.errors import ContextTooLong, InvalidRequest
from models.text.tokenizer import Tokenizer
from router.drafters.prediction import PredictedText


def chat_ids(
    messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, max_model_len: int
) -> list[int]:
    """Ids of a conversation up to the assistant's next turn.

    Raises:
        ContextTooLong: they must be more than the context window has.
        InvalidRequest: the chat template refuses the messages.
    """
    pieces = tokenizer.chat_pieces(messages)
    _check_text(pieces, tokenizer, max_model_len, "messages")
    return tokenizer.encode_pieces(pieces)


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
