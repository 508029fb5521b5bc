"""Request and answer of POST /v1/grammar/check: a text against a constraint, nothing generated."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import Field

from deployments.api.schemas.answers import Shape
from deployments.api.schemas.details import LoosenedPart, loosened_parts
from deployments.api.schemas.grammar_fields import (
    ResponseFormat,
    StructuredOutputs,
    asked_constraint,
    naming_field,
)
from deployments.api.schemas.strict_fields import BodyFields, wrong_field
from models.grammar.limits import MAX_CHECKED_BYTES
from models.protocol.errors import InvalidRequest
from router.types import GrammarChecker


class GrammarCheckRequest(BodyFields):
    """A text, and a constraint in the fields of a completion."""

    text: str = Field(max_length=MAX_CHECKED_BYTES)
    model: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    strict: bool = True  # False: of a JSON schema, loosen what cannot be served, as for tools


class GrammarCheckAnswer(Shape, kw_only=True):
    """The length to which the text obeys the grammar.

    `valid`: the whole text obeys. `num_bytes` of its UTF-8 can begin a text that does. `stops_at`
    is the same if bytes are left, and null otherwise. `may_end`: what goes is a whole text.
    `expected`: some texts that may come next. `loosened`: what of a schema is not enforced.
    """

    object: Literal["grammar.check"] = "grammar.check"
    valid: bool
    num_bytes: int
    stops_at: int | None
    may_end: bool
    expected: list[str]
    loosened: list[LoosenedPart]


async def answer_check(
    asked: GrammarCheckRequest, checker: GrammarChecker | None
) -> GrammarCheckAnswer:
    """Have the text compared.

    Raises:
        InvalidRequest: the text is too long; no constraint, or several.
        UnsupportedGrammar: it is refused, or there is nobody to ask.
    """
    num_text = len(asked.text.encode())
    if num_text > MAX_CHECKED_BYTES:
        raise wrong_field("text", f"at most {MAX_CHECKED_BYTES} bytes are allowed (got {num_text})")
    constraint = asked_constraint(asked.response_format, asked.structured_outputs)
    if constraint is None:
        raise wrong_field("structured_outputs", "is required, or a response_format that constrains")
    field, grammar = constraint
    if not asked.strict:
        if grammar.kind != "json_schema":
            raise wrong_field("strict", "false is only allowed with a JSON schema")
        grammar = msgspec.structs.replace(grammar, loose=(0,))
    if checker is None:
        raise InvalidRequest("this deployment has no constraint service")
    with naming_field(field):
        found = await checker(grammar, asked.text)
    is_whole = found.num_bytes == num_text
    return GrammarCheckAnswer(
        valid=is_whole and found.may_end,
        num_bytes=found.num_bytes,
        stops_at=None if is_whole else found.num_bytes,
        may_end=found.may_end,
        expected=found.expected,
        loosened=loosened_parts(
            [msgspec.structs.replace(one, field=field) for one in found.loosened]
        ),
    )
