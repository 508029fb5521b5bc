"""Logprobs in OpenAI's two shapes, the prompt's in vLLM's, and the probabilities of choices.

A token is named by its text. A part of a character has no text. It is named by its bytes, as in
OpenAI's API. Such a name is `\\xe2\\x82` in chat answers. It is `bytes:\\xe2\\x82` in completions,
whose names are keys.

Shapes are plain dicts and are encoded token by token (`api/writing/json_chunks.py`). A long text or
prompt has a hundred thousand entries, each about 75 bytes of JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from typing_extensions import TypedDict

from deployments.api.writing.json_chunks import JsonItems, items_in_one
from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import unpack
from models.text.tokenizer import Tokenizer
from router.types import Delta, ShownToken

_LOWEST = -9999.0  # JSON has no -inf; OpenAI's word for "very unlikely"
_NUM_NAMES = 16_384  # remembered for one answer: a few MB


class TopLogprob(TypedDict):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TypedDict):
    """A token that came, and the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """`logprobs` of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None


class TextLogprobs(TypedDict):
    """`logprobs` of a completion: lists of one length, an entry for each token.

    `top_logprobs` names the likeliest tokens and the one that came. The first token of an echoed
    prompt has None: nothing predicts it.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(TypedDict):
    """The probability of a token of the prompt, or of another at its place."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token


class ChoiceProbability(msgspec.Struct, frozen=True):
    """One choice of a list, in answers that ask for its probability.

    `logprob` is the model's for the choice's tokens and an end after them. `probability` is its
    share among the choices of the list, from which a request at temperature 1 without truncation
    samples.
    """

    choice: str
    logprob: float
    probability: float


class TokenName(NamedTuple):
    """The names of a token in answers."""

    text: str
    key: str  # where names are keys
    octets: list[int]


class TokenNames:
    """Names of a tokenizer's tokens, for one answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.of = lru_cache(maxsize=_NUM_NAMES)(self._of)

    def _of(self, token_id: int) -> TokenName:
        raw = self._tokenizer.token_bytes(token_id)
        try:
            text = raw.decode()
        except UnicodeDecodeError:  # a part of a character
            text = "".join(f"\\x{byte:02x}" for byte in raw)
            return TokenName(text, f"bytes:{text}", list(raw))
        return TokenName(text, text, list(raw))


def chat_logprob(token: ShownToken, names: TokenNames) -> ChatTokenLogprob:
    """Shape a token of the text for chats and responses."""
    entry = token.logprobs
    own = _top_logprob(names.of(entry.token), entry.logprob)
    others = [_top_logprob(names.of(token_id), logprob) for token_id, logprob in entry.top]
    return ChatTokenLogprob(**own, top_logprobs=others)


def _top_logprob(name: TokenName, logprob: float) -> TopLogprob:
    return {"token": name.text, "logprob": _finite(logprob), "bytes": name.octets}


class ChatLogprobsJson:
    """`ChatLogprobs` of some text, as JSON."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._content = JsonItems()

    def add(self, token: ShownToken) -> None:
        """Add the next token of the text."""
        self._content.append(chat_logprob(token, self._names))

    @property
    def chunks(self) -> list[bytes]:
        """The JSON text."""
        return [b'{"content":[', *self._content.chunks, b'],"refusal":null}']


class TextLogprobsJson:
    """`TextLogprobs` of some text, as JSON.

    Args:
        names: of the tokens.
        first_offset: characters in front of the text.
    """

    def __init__(self, names: TokenNames, first_offset: int = 0) -> None:
        self._names = names
        self._first_offset = first_offset
        self._lists = {name: JsonItems() for name in TextLogprobs.__annotations__}

    def add(self, token: ShownToken) -> None:
        """Add the next token of the text."""
        entry = token.logprobs
        self.add_entry(self._first_offset + token.offset, entry, len(entry.top))

    def add_entry(self, offset: int, entry: TokenLogprobs, num_top: int) -> None:
        """Add a token that begins at character `offset`, with its `num_top` likeliest ones."""
        top = self._top_map(entry, num_top)
        self._append(offset, _finite(entry.logprob), self._names.of(entry.token).key, top)

    def add_first(self, token_id: int) -> None:
        """Add the first token of a prompt, which has no logprob."""
        self._append(0, None, self._names.of(token_id).key, None)

    def chunks_after(self, first: TextLogprobsJson | None) -> list[bytes]:
        """Join the JSON texts of `first`, if given, and of this."""
        chunks: list[bytes] = []
        for name, items in self._lists.items():
            chunks.append(f'{"," if chunks else "{"}"{name}":['.encode())
            chunks += items.chunks if first is None else items_in_one(first._lists[name], items)
            chunks.append(b"]")
        return [*chunks, b"}"]

    def _append(self, *values: object) -> None:
        for items, value in zip(self._lists.values(), values, strict=True):
            items.append(value)

    def _top_map(self, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
        """Logprobs by name. The sampled token comes first; of others with one name the likelier
        counts."""
        named = {self._names.of(entry.token).key: _finite(entry.logprob)}
        for token_id, logprob in entry.top[:num_top]:
            named.setdefault(self._names.of(token_id).key, _finite(logprob))
        return dict(sorted(named.items(), key=lambda item: -item[1]))


class PromptLogprobsJson:
    """`PromptLogprobs` of one prompt, as JSON.

    Args:
        names: of the tokens.
        num_top: likeliest tokens to name.
    """

    def __init__(self, names: TokenNames, num_top: int) -> None:
        self._names = names
        self._num_top = num_top
        self._items = JsonItems()
        self._items.append(None)

    def add(self, packed: bytes) -> None:
        """Add the entry of the prompt's next token; the first call is for its second token."""
        entry = unpack(packed)
        self._items.append({str(one[0]): self._shape(*one) for one in ranked(entry, self._num_top)})

    @property
    def chunks(self) -> list[bytes]:
        """The JSON text."""
        return [b"[", *self._items.chunks, b"]"]

    def _shape(self, token_id: int, logprob: float, rank: int) -> PromptLogprob:
        name = self._names.of(token_id).text
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": name}


def ranked(entry: TokenLogprobs, num_top: int | None = None) -> list[tuple[int, float, int]]:
    """Return the `num_top` likeliest tokens, or all, and the token that came.

    Each has its id, logprob and rank.
    """
    top = enumerate(entry.top[:num_top], 1)
    ranking = [(token, logprob, rank) for rank, (token, logprob) in top]
    if all(token != entry.token for token, _, _ in ranking):
        ranking.append((entry.token, entry.logprob, entry.rank))
    return ranking


def probabilities_of(choices: Sequence[str], delta: Delta) -> list[ChoiceProbability]:
    """Return the probabilities of a list.

    They are empty if they were not requested (no `choices`) or came before. A stream has them in
    its event with the text.
    """
    if not choices or not delta.choice_logprobs:
        return []
    highest = max(delta.choice_logprobs)
    weights = [math.exp(logprob - highest) for logprob in delta.choice_logprobs]
    total = math.fsum(weights)
    return [
        ChoiceProbability(choice=choice, logprob=logprob, probability=weight / total)
        for choice, logprob, weight in zip(choices, delta.choice_logprobs, weights, strict=True)
    ]


def prompt_offsets(prompt_ids: Sequence[int], text: str, tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the offset of each prompt token's text in `text`, the prompt as it was sent.

    Special tokens have text there only where the client wrote them out.
    """
    detokenizer = tokenizer.detokenizer()
    at = 0
    for token_id in prompt_ids:
        yield min(at, len(text))
        piece = detokenizer.push((token_id,))
        if not piece and tokenizer.is_special(token_id):
            name = tokenizer.token_bytes(token_id).decode()
            piece = name if text.startswith(name, at) else ""
        at += len(piece)


def _finite(logprob: float) -> float:
    return logprob if logprob > _LOWEST else _LOWEST
