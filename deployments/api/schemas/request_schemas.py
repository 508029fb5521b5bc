"""JSON schemas of the request bodies as this server reads them, for the OpenAPI page.

They are pydantic's own schemas of the shapes in `requests.py`. They are loosened by the parts that
`bodies.py` lets pass before a shape sees them. These are nulls, fields without effect and values
that ask for nothing. They are tightened by the limits of the served model (`requests.py`). Rules
between two fields are not in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from deployments.api.requests import ServedModel
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.schemas.grammar_check import GrammarCheckRequest
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from deployments.api.schemas.strict_fields import MAX_FIELDS, BodyFields
from deployments.api.tokens.shapes import DetokenizeRequest, TokenizeRequest

Schema = dict[str, Any]

REFS = "#/components/schemas/"

_NULL: Schema = {"type": "null"}


def request_schemas(model: ServedModel) -> dict[str, Schema]:
    """Schemas of all bodies by name, and of what they refer to."""
    requests = (ChatCompletionRequest, CompletionRequest)
    bodies: list[type[BodyFields]] = [
        *requests,
        ResponsesRequest,
        TokenizeRequest,
        DetokenizeRequest,
        GrammarCheckRequest,
    ]
    _, described = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=REFS + "{model}"
    )
    schemas: dict[str, Schema] = described["$defs"]
    for body in bodies:
        _take_neutral(schemas[body.__name__], body)
    for shape in schemas.values():
        if shape.get("additionalProperties") is False:
            _take_absent(shape)
    for request in requests:
        _limit(schemas[request.__name__]["properties"], model)
    for body in (*requests, ResponsesRequest):
        properties = schemas[body.__name__]["properties"]
        properties["model"]["enum"] = [model.name, *model.adapters]
        for name, value in model.sampling.given.items():
            properties[name]["default"] = value
    speculation = schemas["SpeculationOptions"]["properties"]
    _bound(speculation["k"], "integer", maximum=model.max_num_speculative_tokens)
    if model.drafters:
        _bound(speculation["drafter"], "string", enum=list(model.drafters))
    return schemas


def _take_neutral(shape: Schema, body: type[BodyFields]) -> None:
    properties = shape["properties"]
    for name in sorted(body.ignored):
        properties[name] = {"description": "Accepted, without effect."}
    for name, values in body.neutral.items():
        if name not in properties:
            text = "Not offered: only values that ask for nothing are accepted."
            properties[name] = {"enum": [*values, None], "description": text}


def _take_absent(shape: Schema) -> None:
    """Let null stand for any field that is not required, and for one that is not known."""
    required = shape.get("required", ())
    for name, schema in shape.get("properties", {}).items():
        if name not in required and not _takes_anything(schema):
            shape["properties"][name] = _or_null(schema)
    shape["additionalProperties"] = _NULL
    shape["maxProperties"] = MAX_FIELDS


def _takes_anything(schema: Schema) -> bool:
    return not set(schema) - {"description"} or None in schema.get("enum", ())


def _limit(properties: Schema, model: ServedModel) -> None:
    """Put in the limits of the served model."""
    longest = min(model.max_tokens_limit, model.max_model_len - 1)
    is_limited = model.max_tokens_limit < model.max_model_len  # else the window cuts
    ids = {"minimum": 0, "maximum": model.tokenizer.vocab_size - 1}
    _bound(properties["min_tokens"], "integer", maximum=longest)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in properties and is_limited:
            _bound(properties[name], "integer", maximum=longest)
    _bound(properties["n"], "integer", maximum=model.max_choices)
    _bound(properties["stop"], "string", maxLength=model.max_stop_chars)
    _bound(properties["stop"], "array", maxItems=model.max_stop_strings)
    _bound(properties["stop_token_ids"], "integer", **ids)
    if "prompt" in properties:
        _bound(properties["prompt"], "integer", **ids)
        _bound(properties["prompt"], "string", minLength=0 if model.tokenizer.encode("") else 1)


def _bound(schema: Schema, kind: str, **limits: int | list[str]) -> None:
    for part in _parts(schema):
        if part.get("type") == kind:
            part.update(limits)


def _parts(schema: Schema) -> Iterator[Schema]:
    yield schema
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    for part in inner:
        yield from _parts(part)


def _or_null(schema: Schema) -> Schema:
    """Allow null too; the description stays on the outside."""
    outside: Schema = {
        key: schema[key] for key in ("title", "description", "default") if key in schema
    }
    bare = {key: value for key, value in schema.items() if key not in outside}
    options = bare["anyOf"] if set(bare) == {"anyOf"} else [bare]
    return {**outside, "anyOf": options if _NULL in options else [*options, _NULL]}
