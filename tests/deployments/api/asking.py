"""One request over a scripted generator: its answer, its refusal, or its body as routes read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx

from deployments.api.bodies import parse
from deployments.api.requests import ServedModel, prepare_completions, prepare_turn
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from deployments.api.schemas.strict_fields import BodyFields
from router.types import GenerationRequest
from tests.fakes.http import CHAT, TEXT, ScriptedGenerator
from tests.harness.http_clients import client_of

KEY = "a-key-of-the-test"
Shape = TypeVar("Shape", bound=BodyFields)


async def post(
    path: str, body: object, generator: ScriptedGenerator | None = None, **options: Any
) -> httpx.Response:
    """Post JSON to an application of its own; `options` are those of `client_of`."""
    async with client_of(generator or ScriptedGenerator(), **options) as client:
        return await client.post(path, content=json.dumps(body))  # lone surrogates too


async def refusal(
    path: str, body: object, generator: ScriptedGenerator | None = None, **options: Any
) -> dict[str, Any]:
    """Return the error of a 400."""
    answer = await post(path, body, generator, **options)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def read(shape: type[Shape], body: Mapping[str, Any], **fields: Any) -> Shape:
    """Read a body with further fields."""
    # JSON has no infinity, but a number that is too large reads as one.
    text = json.dumps({**body, **fields}).replace("Infinity", "1e999")
    return parse(text.encode(), shape)


def chat_request(served: ServedModel, /, **fields: Any) -> GenerationRequest:
    """Return what a chat asks of the router."""
    return prepare_turn(read(ChatCompletionRequest, CHAT, **fields), served, "r1")[0]


def text_request(served: ServedModel, /, **fields: Any) -> GenerationRequest:
    """Return what a completion of one prompt asks of the router."""
    [request], _ = prepare_completions(read(CompletionRequest, TEXT, **fields), served, "r1")
    return request
