"""Request fields that say what may be sampled and what is reported of it: shapes and own limits.

Limits that need the vocabulary are in `sampling_terms.py`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from deployments.api.schemas.strict_fields import at_most, integers, refuse_value, without_nulls

MAX_LOGPROBS = 20  # likeliest tokens for each position
MAX_BIASES = 300  # OpenAI's
_BIAS_LIMIT = 100
_MAX_WORDS = 256  # every row looks at each of them
_MAX_WORD_CHARS = 256
_MAX_STOP_IDS = 128
_MAX_RESUMED = 1024  # choices of one request
MAX_BODY_IDS = 262_144  # tokens of one list; its text is about a megabyte
_ID = re.compile(r"[0-9]{1,9}")


def _biases(content: Any) -> list[tuple[int, float]]:
    """OpenAI's map of token id (JSON has only strings as keys) to bias."""
    if not isinstance(content, dict):
        refuse_value("must be an object of token ids and biases")
    if len(content) > MAX_BIASES:
        refuse_value(f"at most {MAX_BIASES} entries are allowed (got {len(content)})")
    biases = []
    for key, bias in without_nulls(content).items():
        if not _ID.fullmatch(key):
            refuse_value(f"keys must be token ids (got {key[:40]!r})")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) == math.inf:
            refuse_value(f"the bias of token {key} must be a number (got {bias!r:.40})")
        if not -_BIAS_LIMIT <= bias <= _BIAS_LIMIT:
            refuse_value(
                f"the bias of token {key} must be within -{_BIAS_LIMIT}..{_BIAS_LIMIT} "
                f"(got {bias!r:.40})"
            )
        biases.append((int(key), float(bias)))
    return biases


def _words(content: Any) -> list[str]:
    if not isinstance(content, list) or not all(isinstance(word, str) for word in content):
        refuse_value("must be a list of strings")
    if len(content) > _MAX_WORDS:
        refuse_value(f"at most {_MAX_WORDS} words are allowed (got {len(content)})")
    for word in content:
        if not word.strip():
            refuse_value("a bad word must not be empty")
        if len(word) > _MAX_WORD_CHARS:
            refuse_value(f"at most {_MAX_WORD_CHARS} characters each (got {len(word)})")
    return content


def token_ids_to(limit: int) -> BeforeValidator:
    """Return the validator of a list of at most `limit` token ids."""

    def read(content: Any) -> list[int]:
        content = integers(content)
        if not isinstance(content, list) or not all(type(item) is int for item in content):
            refuse_value("must be a list of token ids")
        if len(content) > limit:
            refuse_value(f"at most {limit} ids are allowed (got {len(content)})")
        return content

    shape = Annotated[list[int], Field(max_length=limit)]
    return BeforeValidator(read, json_schema_input_type=shape)


def _no_false(content: Any) -> Any:
    """Chat's `logprobs: false` is sent to completions too; there it asks for nothing."""
    return None if content is False else content


# The OpenAPI page shows these shapes; the validators above accept the same.
_IdText = Annotated[str, StringConstraints(pattern=f"^{_ID.pattern}$")]
_Bias = Annotated[float, Field(ge=-_BIAS_LIMIT, le=_BIAS_LIMIT)]
# Pydantic says what keys of the pattern hold, not that there are no others.
_BiasesIn = Annotated[
    dict[_IdText, _Bias],
    Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
]
_Word = Annotated[str, StringConstraints(pattern=r"\S", max_length=_MAX_WORD_CHARS)]
_WordsIn = Annotated[list[_Word], Field(max_length=_MAX_WORDS)]

LogitBias = Annotated[
    list[tuple[int, float]], BeforeValidator(_biases, json_schema_input_type=_BiasesIn)
]
BadWords = Annotated[list[str], BeforeValidator(_words, json_schema_input_type=_WordsIn)]
StopTokenIds = Annotated[list[int], token_ids_to(_MAX_STOP_IDS)]
ResumedIds = Annotated[
    list[Annotated[list[int], token_ids_to(MAX_BODY_IDS)]],
    Field(max_length=_MAX_RESUMED),
    at_most(_MAX_RESUMED),
]
NoFalse = BeforeValidator(
    _no_false,
    json_schema_input_type=Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | Literal[False] | None,
)
