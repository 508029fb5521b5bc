"""Reads which token ids a tokenizer has, and checks that two checkpoints mean the same by them.

Models round their vocabulary up. Their logits have columns that no token belongs to, and models of
one family may round to different sizes. Such ids are never sampled (`models/engine/runner.py`), so
a draft and a target with one tokenizer agree however each is padded. Reads tokenizer.json, nothing
else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.files import read_json, unreadable


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer by id, added and special ones included."""

    tokens: Mapping[int, str]

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self.tokens, default=-1) + 1

    @property
    def digest(self) -> str:
        """A short name of what the ids mean, the same wherever they mean the same."""
        meant = json.dumps(sorted(self.tokens.items()), ensure_ascii=True).encode()
        return hashlib.blake2b(meant, digest_size=8).hexdigest()


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a tokenizer.json.

    Raises:
        ValueError: the file cannot be read or holds no tokens.
    """
    content = read_json(path)
    try:
        tokens = _tokens(content)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise unreadable(path, f"it has no vocabulary ({type(error).__name__}: {error})") from None
    if not tokens:
        raise ValueError(f"{path} holds no tokens")
    return Vocabulary(tokens)


def _tokens(content: Any) -> dict[int, str]:
    vocab = content["model"]["vocab"]
    if isinstance(vocab, Mapping):
        tokens = {int(token_id): str(token) for token, token_id in vocab.items()}
    else:  # a list of (token, score) in order of their ids
        tokens = {token_id: str(item[0]) for token_id, item in enumerate(vocab)}
    added = content.get("added_tokens") or []
    return tokens | {int(item["id"]): str(item["content"]) for item in added}


def num_shared_ids(target: Vocabulary, draft: Vocabulary) -> int:
    """Return how many ids, from 0 on, are the same token in both.

    Raises:
        ValueError: names the first id that is not, and both its tokens.
    """
    num_shared = min(target.size, draft.size)
    for token_id in range(num_shared):
        theirs, ours = draft.tokens.get(token_id), target.tokens.get(token_id)
        if theirs != ours:
            raise ValueError(
                f"token id {token_id} is {_named(theirs)} in the draft's tokenizer and "
                f"{_named(ours)} in the target's"
            )
    return num_shared


def _named(token: str | None) -> str:
    return "no token" if token is None else repr(token)


@dataclass(frozen=True, slots=True)
class DrawableIds:
    """The ids that one engine may sample: those below `size` but for `missing`."""

    size: int
    missing: tuple[int, ...] = ()


def drawable_ids(
    vocabulary: Vocabulary | None,
    num_columns: int,
    eos_ids: Collection[int] = (),
    limit: int | None = None,
) -> DrawableIds:
    """Return the ids that may be sampled from logits of `num_columns`.

    Args:
        vocabulary: of the checkpoint's tokenizer; None: it has none, all columns are tokens.
        num_columns: of the logits.
        eos_ids: ids that end a text, which are kept though the tokenizer may not know them.
        limit: ids from this one on are not sampled, for a draft whose target does not have them.
    """
    most = num_columns if limit is None else min(num_columns, limit)
    if vocabulary is None:
        return DrawableIds(most)
    size = min(most, max(vocabulary.size, *(token_id + 1 for token_id in (-1, *eos_ids))))
    kept = vocabulary.tokens.keys() | set(eos_ids)
    return DrawableIds(size, tuple(i for i in range(size) if i not in kept))
