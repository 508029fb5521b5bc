"""The request fields that constrain the answer, and the grammar they ask for.

OpenAI spells them `response_format`, vLLM `structured_outputs`; one constraint per request. What
compiles is decided by the constraint service, which does not know how the client spelt a
constraint: `naming_field` puts the field into its refusals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from deployments.api.schemas.strict_fields import StrictFields
from models.protocol.errors import InvalidRequest, UnsupportedGrammar
from models.protocol.messages import Grammar


class JsonSchema(StrictFields):
    """The `json_schema` of a response format. The schema is enforced whatever `strict` says."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictFields):
    """Free text, any JSON object, or JSON that obeys a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(StrictFields):
    """vLLM's field for constraints; exactly one of its members is given."""

    json_: dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool = False  # True: any JSON object
    regex: str | None = Field(default=None, min_length=1)
    choice: list[str] | None = Field(default=None, min_length=1, fail_fast=True)
    choice_sampling: Literal["exact", "masked"] = "exact"  # see `api/prompts.choice_ids`
    choice_probabilities: bool = False  # in the answer

    @property
    def exact_choices(self) -> list[str]:
        """The choices that are weighed whole; none where masks or nothing of the kind is asked."""
        is_exact = self.choice_sampling == "exact"
        return self.choice if self.choice is not None and is_exact else []


def asked_field(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> str | None:
    """Path of the field that constrains the answer; None: free text.

    Raises:
        InvalidRequest: several constraints, or a field that is missing or out of place.
    """
    field = None if response_format is None else _format_field(response_format)
    if outputs is None:
        return field
    if field is not None:
        raise InvalidRequest(
            "response_format and structured_outputs both constrain the answer; send one",
            param="structured_outputs",
        )
    return _outputs_field(outputs)


def asked_grammar(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> Grammar | None:
    """The constraint that a request asks for; None: free text, or choices that are weighed whole.

    Raises:
        InvalidRequest: see `asked_field`.
    """
    field = asked_field(response_format, outputs)
    if field is None:
        return None
    if outputs is None:
        schema = response_format.json_schema if response_format is not None else None
        return _json_grammar(None if schema is None else schema.schema_)
    if outputs.regex is not None:
        return Grammar(kind="regex", text=outputs.regex)
    if outputs.exact_choices:
        return None
    if outputs.choice is not None:
        return Grammar(kind="choice", text=json.dumps(outputs.choice, ensure_ascii=False))
    return _json_grammar(outputs.json_)


@contextmanager
def naming_field(field: str | None) -> Iterator[None]:
    """Make refusals of a grammar within the block refusals of the request's field.

    Raises:
        UnsupportedGrammar: as raised in the block; with a `field` it names that.
    """
    try:
        yield
    except UnsupportedGrammar as error:
        if field is None:
            raise
        raise UnsupportedGrammar(
            f"{field}: {error.message}", param=field, code=error.code
        ) from error


def _format_field(response_format: ResponseFormat) -> str | None:
    needs_schema = response_format.type == "json_schema"
    if needs_schema != (response_format.json_schema is not None):
        raise InvalidRequest(
            "response_format.json_schema: "
            f"is {'required' if needs_schema else 'only allowed'} with type 'json_schema'",
            param="response_format.json_schema",
        )
    if needs_schema:
        return "response_format.json_schema.schema"
    return "response_format.type" if response_format.type == "json_object" else None


def _outputs_field(outputs: StructuredOutputs) -> str:
    given = [
        name
        for name, is_given in (
            ("json", outputs.json_ is not None),
            ("json_object", outputs.json_object),
            ("regex", outputs.regex is not None),
            ("choice", outputs.choice is not None),
        )
        if is_given
    ]
    if len(given) != 1:
        raise InvalidRequest(
            "structured_outputs: exactly one of json, json_object, regex and choice is required "
            f"(got {' and '.join(given) or 'none'})",
            param="structured_outputs",
        )
    _check_choice_terms(outputs)
    return f"structured_outputs.{given[0]}"


def _check_choice_terms(outputs: StructuredOutputs) -> None:
    for field in ("choice_sampling", "choice_probabilities"):
        if outputs.choice is None and field in outputs.model_fields_set:
            raise InvalidRequest(
                f"structured_outputs.{field}: only allowed with choice",
                param=f"structured_outputs.{field}",
            )
    if outputs.choice_probabilities and not outputs.exact_choices:
        raise InvalidRequest(
            "structured_outputs.choice_probabilities: only allowed with choice_sampling 'exact' "
            "(got 'masked')",
            param="structured_outputs.choice_probabilities",
        )


def _json_grammar(schema: dict[str, Any] | None) -> Grammar:
    if schema is None:
        return Grammar(kind="json_object", text="")
    try:
        # As `json.dumps` writes it; but that keeps Python's lock for all of a long schema.
        text = "".join(json.JSONEncoder().iterencode(schema))
    except RecursionError:
        raise UnsupportedGrammar("the schema is nested too deeply") from None
    return Grammar(kind="json_schema", text=text)
