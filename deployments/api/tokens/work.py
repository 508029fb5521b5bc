"""Texts to tokens and back, for clients: pure computing, for long bodies outside the event loop.

A prompt may be longer than the context window here: who trims one has to know by how much. The
limit is that of the body.
"""

from __future__ import annotations

from itertools import groupby

from deployments.api.history.turns import turns_of
from deployments.api.prompts import checked_ids
from deployments.api.requests import ServedModel
from deployments.api.schemas.logprobs import TokenNames
from deployments.api.schemas.strict_fields import wrong_field
from deployments.api.tokens.shapes import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from models.text.tokenizer import Tokenizer


def tokenized(asked: TokenizeRequest, model: ServedModel) -> bytes:
    """Return the answer to POST /tokenize, a `TokenizeAnswer`.

    Raises:
        InvalidRequest: it has no text or two, or fields contradict each other.
        UnknownModel: it asks for another model.
    """
    if asked.model is not None:
        model.check_name(asked.model)
    ids = _ids(asked, model)
    names = TokenNames(model.tokenizer)
    token_strs = [names.of(token_id).text for token_id in ids] if asked.return_token_strs else None
    return TokenizeAnswer(
        count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=token_strs
    ).to_json()


def detokenized(asked: DetokenizeRequest, model: ServedModel) -> bytes:
    """Return the answer to POST /detokenize, a `DetokenizeAnswer`.

    Raises:
        InvalidRequest: a token id is outside the vocabulary.
        UnknownModel: it asks for another model.
    """
    if asked.model is not None:
        model.check_name(asked.model)
    ids = checked_ids(asked.tokens, model.tokenizer, len(asked.tokens) + 1, "tokens")
    return DetokenizeAnswer(prompt=_text(ids, model.tokenizer)).to_json()


def _ids(asked: TokenizeRequest, model: ServedModel) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        got = "none" if asked.prompt is None else "both"
        raise wrong_field("prompt", f"send either prompt or messages (got {got})")
    tokenizer = model.tokenizer
    if asked.messages is None:
        _check_chat_fields(asked)
        assert asked.prompt is not None
        if asked.add_special_tokens is False:
            return tokenizer.encode_piece(asked.prompt)
        return tokenizer.encode(asked.prompt)
    if asked.add_special_tokens:
        raise wrong_field(
            "add_special_tokens",
            "must be false with messages, whose special tokens the chat template writes (got true)",
        )
    messages, tools = model.formats.prompted(
        turns_of(asked.messages),
        [tool.as_template_reads_it() for tool in asked.tools],
    )
    settings = asked.chat_template_kwargs | {"add_generation_prompt": asked.add_generation_prompt}
    return tokenizer.encode_chat(messages, tools, settings)


def _check_chat_fields(asked: TokenizeRequest) -> None:
    for name in ("tools", "add_generation_prompt", "chat_template_kwargs"):
        if name in asked.model_fields_set:
            raise wrong_field(name, "is only allowed with messages")


def _text(ids: list[int], tokenizer: Tokenizer) -> str:
    """Return the whole text.

    Special tokens stand in it by their names.
    """
    texts, before = [], list[int]()
    for is_special, run in groupby(ids, tokenizer.is_special):
        part = list(run)
        if is_special:
            texts += [tokenizer.token_bytes(token_id).decode() for token_id in part]
        else:
            detokenizer = tokenizer.detokenizer(before)
            texts += [detokenizer.push(part), detokenizer.flush()]
        before = part if not is_special else before
    return "".join(texts)
