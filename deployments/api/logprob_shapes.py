"""Logprobs in OpenAI's two shapes, and the prompt's in vLLM's.

A token is named by its text; a part of a character, which has none, by its bytes as OpenAI writes
them: `\\xe2\\x82` in chat answers, `bytes:\\xe2\\x82` in completions, where names are keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from models.messages import TokenLogprobs
from models.tokenizer import Tokenizer
from router.generation import ShownToken

_LOWEST = -9999.0  # JSON has no -inf; OpenAI's word for "very unlikely"


class TopLogprob(BaseModel):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A token that came, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """`logprobs` of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """`logprobs` of a completion: lists of one length, an entry for each token.

    `top_logprobs` names the likeliest tokens and the one that came. The first token of an echoed
    prompt has None: nothing predicts it.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(BaseModel):
    """What a token of the prompt, or one that might have been in its place, was given."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token


def chat_logprobs(shown: Sequence[ShownToken], tokenizer: Tokenizer) -> ChatLogprobs:
    """Those of the tokens of some text."""
    content = []
    for token in shown:
        entry = token.logprobs
        own = _top(tokenizer, entry.token, entry.logprob)
        top = [_top(tokenizer, *pair) for pair in entry.top]
        content.append(ChatTokenLogprob(**own.model_dump(), top_logprobs=top))
    return ChatLogprobs(content=content)


def text_logprobs(
    shown: Sequence[ShownToken], tokenizer: Tokenizer, first_offset: int = 0
) -> TextLogprobs:
    """Those of the tokens of some text, which begins at character `first_offset`."""
    entries = [token.logprobs for token in shown]
    return TextLogprobs(
        text_offset=[first_offset + token.offset for token in shown],
        token_logprobs=[_finite(entry.logprob) for entry in entries],
        tokens=[_key(tokenizer, entry.token) for entry in entries],
        top_logprobs=[_top_map(tokenizer, entry, len(entry.top)) for entry in entries],
    )


def echoed_logprobs(
    prompt_ids: Sequence[int],
    offsets: Sequence[int],
    entries: Sequence[TokenLogprobs],
    tokenizer: Tokenizer,
    num_top: int,
) -> TextLogprobs:
    """Those of an echoed prompt: `entries` of all its tokens but the first."""
    return TextLogprobs(
        text_offset=list(offsets),
        token_logprobs=[None, *(_finite(entry.logprob) for entry in entries)],
        tokens=[_key(tokenizer, token_id) for token_id in prompt_ids],
        top_logprobs=[None, *(_top_map(tokenizer, entry, num_top) for entry in entries)],
    )


def joined(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """Those of two texts, one behind the other."""
    return TextLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def prompt_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, num_top: int
) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`, of a prompt whose tokens but the first have `entries`."""
    shaped: PromptLogprobs = [None]
    for entry in entries:
        top = entry.top[:num_top]
        ranked = [(token, logprob, i + 1) for i, (token, logprob) in enumerate(top)]
        if all(token != entry.token for token, _, _ in ranked):
            ranked.append((entry.token, entry.logprob, entry.rank))
        shaped.append(
            {
                str(token): PromptLogprob(
                    logprob=_finite(logprob), rank=rank, decoded_token=_name(tokenizer, token)[0]
                )
                for token, logprob, rank in ranked
            }
        )
    return shaped


def prompt_offsets(prompt_ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """For each token of a prompt where its text begins in `text`, the prompt as it was sent.

    Special tokens have text there only where the client wrote them out.
    """
    detokenizer = tokenizer.detokenizer()
    offsets: list[int] = []
    at = 0
    for token_id in prompt_ids:
        offsets.append(min(at, len(text)))
        piece = detokenizer.push((token_id,))
        if not piece and tokenizer.is_special(token_id):
            name = tokenizer.token_bytes(token_id).decode()
            piece = name if text.startswith(name, at) else ""
        at += len(piece)
    return offsets


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    name, raw = _name(tokenizer, token_id)
    return TopLogprob(token=name, logprob=_finite(logprob), bytes=list(raw))


def _top_map(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
    """By name; where two tokens have one name the likelier counts, but the one that came first."""
    pairs = [(entry.token, entry.logprob), *entry.top[:num_top]]
    named: dict[str, float] = {}
    for token_id, logprob in pairs:
        named.setdefault(_key(tokenizer, token_id), _finite(logprob))
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _key(tokenizer: Tokenizer, token_id: int) -> str:
    name, raw = _name(tokenizer, token_id)
    return f"bytes:{name}" if _is_part(raw) else name


def _name(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    raw = tokenizer.token_bytes(token_id)
    name = "".join(f"\\x{byte:02x}" for byte in raw) if _is_part(raw) else raw.decode()
    return name, raw


def _is_part(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
