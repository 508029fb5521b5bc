"""The request fields that constrain the answer, and the grammar they ask for.

OpenAI spells them `response_format`, vLLM `structured_outputs`; one constraint per request. The
constraint service decides which grammars compile. It does not know how the client spelt a
constraint, so `naming_field` puts the field into its refusals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from deployments.api.bodies import read_json
from deployments.api.schemas.strict_fields import StrictFields, wrong_field
from models.grammar.rules.ebnf import is_ebnf
from models.protocol.errors import InvalidRequest, UnsupportedGrammar
from models.protocol.messages import Grammar
from router.types import Delta, Finished

_JSON = "application/json"
_LINE = re.compile(r"line (\d+)(?:, column \d+)?: (?:%json: )?")
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_JSON_OPTIONS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
_FORMAT_FIELDS = {
    "json_schema": "json_schema",
    "format": "structural_tag",
    "structures": "structural_tag",
    "triggers": "structural_tag",
}


class JsonSchema(StrictFields):
    """The `json_schema` of a response format. The schema is enforced whatever `strict` says."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictFields):
    """Free text, any JSON object, or JSON that obeys a schema."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    # The two spellings of structural tags: the newer one, and the older one.
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


def _json_value(content: Any, info: ValidationInfo) -> Any:
    """Read a field that may also be the text of its JSON."""
    if not isinstance(content, str):
        return content
    field = f"structured_outputs.{(info.field_name or '').rstrip('_')}"
    try:
        return read_json(content.encode())
    except ValueError as fault:
        raise InvalidRequest(f"{field} is not valid JSON: {fault}", param=field) from None


_JsonText = Annotated[str, WithJsonSchema({"type": "string", "contentMediaType": _JSON})]
_JsonValue = Annotated[
    dict[str, Any],
    BeforeValidator(_json_value, json_schema_input_type=dict[str, Any] | _JsonText),
]


class StructuredOutputs(StrictFields):
    """vLLM's field for constraints; exactly one of the first six is given.

    `grammar` is Lark, or EBNF where a line begins `name ::=`.
    """

    json_: _JsonValue | None = Field(default=None, alias="json")
    json_object: bool = False  # True: any JSON object
    regex: str | None = Field(default=None, min_length=1)
    choice: list[str] | None = Field(default=None, min_length=1, fail_fast=True)
    choice_sampling: Literal["exact", "masked"] = "exact"  # see `api/prompts.choice_ids`
    choice_probabilities: bool = False  # in the answer
    grammar: str | None = Field(default=None, min_length=1)
    structural_tag: _JsonValue | None = None
    # Options of the two JSON kinds.
    whitespace_pattern: str | None = Field(default=None, min_length=1)
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    disable_fallback: bool = False  # there is none

    @property
    def exact_choices(self) -> list[str]:
        """The choices that are weighed whole; none where masks or nothing of the kind is asked."""
        is_exact = self.choice_sampling == "exact"
        return self.choice if self.choice is not None and is_exact else []


class Constraint(NamedTuple):
    """The grammar that an answer must obey, and the path of the field that asks for it."""

    field: str
    grammar: Grammar


def asked_constraint(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> Constraint | None:
    """Return the constraint that a request asks for; None for free text.

    Raises:
        InvalidRequest: several constraints, or a field that is missing or out of place.
        UnsupportedGrammar: it is nested too deeply.
    """
    field = None if response_format is None else _format_field(response_format)
    if outputs is not None:
        if field is not None:
            raise InvalidRequest(
                "response_format and structured_outputs both constrain the answer; send one",
                param="structured_outputs",
            )
        field = _outputs_field(outputs)
    if field is None:
        return None
    with naming_field(field):
        if outputs is not None:
            return Constraint(field, _outputs_grammar(outputs))
        assert response_format is not None
        return Constraint(field, _format_grammar(response_format))


@contextmanager
def naming_field(field: str | None = None, *of_lines: str) -> Iterator[None]:
    """Make refusals of a grammar within the block refusals of the request's field.

    Args:
        field: that asks for the grammar.
        of_lines: fields that the grammar's lines are made of, from the second on.

    Raises:
        UnsupportedGrammar: as raised in the block; with a `field` it names that.
    """
    try:
        yield
    except UnsupportedGrammar as error:
        if field is None:
            raise
        message = error.message
        place = _LINE.match(message) if of_lines else None
        if place is not None:
            message = message[place.end() :]
            if 0 <= int(place[1]) - 2 < len(of_lines):
                field = of_lines[int(place[1]) - 2]
        raise UnsupportedGrammar(f"{field}: {message}", param=field, code=error.code) from error


def naming_loosened(item: Delta | Finished, fields: Sequence[str]) -> Delta | Finished:
    """Add the request's fields to the loosened parts at the end of a text.

    Args:
        item: of a text.
        fields: that ask for the grammar: its own, and those of its lines from the second on.
    """
    if not isinstance(item, Finished) or not item.loosened or not fields:
        return item
    named = tuple(
        msgspec.structs.replace(
            one, field=fields[one.line - 1] if 0 < one.line <= len(fields) else fields[0]
        )
        for one in item.loosened
    )
    return replace(item, loosened=named)


def _format_field(response_format: ResponseFormat) -> str | None:
    kind = response_format.type
    for name, owner in _FORMAT_FIELDS.items():
        if owner != kind and getattr(response_format, name) is not None:
            raise wrong_field(f"response_format.{name}", f"is only allowed with type '{owner}'")
    match kind:
        case "json_schema":
            if response_format.json_schema is None:
                raise wrong_field(
                    "response_format.json_schema", "is required with type 'json_schema'"
                )
            return "response_format.json_schema.schema"
        case "structural_tag":
            return "response_format"
        case "json_object":
            return "response_format.type"
        case _:
            return None


def _outputs_field(outputs: StructuredOutputs) -> str:
    given = [name for name in _KINDS if _is_given(outputs, name)]
    if len(given) != 1:
        raise wrong_field(
            "structured_outputs",
            "exactly one of json, json_object, regex, choice, grammar and "
            f"structural_tag is required (got {' and '.join(given) or 'none'})",
        )
    _check_json_options(outputs, given[0])
    _check_choice_terms(outputs)
    return f"structured_outputs.{given[0]}"


def _is_given(outputs: StructuredOutputs, name: str) -> bool:
    return getattr(outputs, "json_" if name == "json" else name) not in (None, False)


def _check_json_options(outputs: StructuredOutputs, kind: str) -> None:
    given = [name for name in _JSON_OPTIONS if _is_given(outputs, name)]
    for name in given:
        if not kind.startswith("json"):
            raise wrong_field(
                f"structured_outputs.{name}",
                f"is only allowed with json and json_object (got {kind})",
            )
    if "whitespace_pattern" in given and "disable_any_whitespace" in given:
        raise wrong_field(
            "structured_outputs.whitespace_pattern", "is not allowed with disable_any_whitespace"
        )


def _format_grammar(response_format: ResponseFormat) -> Grammar:
    if response_format.type == "structural_tag":
        given = {name: getattr(response_format, name) for name in ResponseFormat.model_fields}
        return _tag_grammar({name: value for name, value in given.items() if value is not None})
    schema = response_format.json_schema
    return _json_grammar(None if schema is None else schema.schema_)


def _tag_grammar(tag: dict[str, Any]) -> Grammar:
    return Grammar(kind="structural_tag", text=_json_text(tag))


def _check_choice_terms(outputs: StructuredOutputs) -> None:
    for field in ("choice_sampling", "choice_probabilities"):
        if outputs.choice is None and field in outputs.model_fields_set:
            raise wrong_field(f"structured_outputs.{field}", "only allowed with choice")
    if outputs.choice_probabilities and not outputs.exact_choices:
        raise wrong_field(
            "structured_outputs.choice_probabilities",
            "only allowed with choice_sampling 'exact' (got 'masked')",
        )


def _outputs_grammar(outputs: StructuredOutputs) -> Grammar:
    if outputs.regex is not None:
        return Grammar(kind="regex", text=outputs.regex)
    if outputs.choice is not None:
        return Grammar(kind="choice", text=json.dumps(outputs.choice, ensure_ascii=False))
    if outputs.grammar is not None:
        return Grammar(kind="ebnf" if is_ebnf(outputs.grammar) else "lark", text=outputs.grammar)
    if outputs.structural_tag is not None:
        return _tag_grammar(outputs.structural_tag)
    grammar = _json_grammar(outputs.json_)
    whitespace = "" if outputs.disable_any_whitespace else outputs.whitespace_pattern
    is_closed = outputs.disable_additional_properties
    return msgspec.structs.replace(grammar, whitespace=whitespace, is_closed=is_closed)


def _json_grammar(schema: dict[str, Any] | None) -> Grammar:
    if schema is None:
        return Grammar(kind="json_object", text="")
    return Grammar(kind="json_schema", text=_json_text(schema))


def _json_text(value: dict[str, Any]) -> str:
    try:
        # The result is that of `json.dumps`, which would keep Python's lock for all of a long
        # schema.
        return "".join(json.JSONEncoder().iterencode(value))
    except RecursionError:
        raise UnsupportedGrammar("it is nested too deeply") from None
