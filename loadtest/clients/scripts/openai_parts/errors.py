"""OpenAI's own client: every refusal becomes the exception that its users catch."""

from __future__ import annotations

from collections.abc import Callable

import openai

from loadtest.clients.scripts.checks import ORDER, STORY, Checks, Service, expect
from loadtest.clients.scripts.openai_parts.client import client_of

checks = Checks()


def raised(kind: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    try:
        call()
    except openai.APIError as error:
        expect(type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}")
        if isinstance(error, kind):
            return error
    expect(False, f"nothing was raised, {kind.__name__} expected")
    raise AssertionError


@checks.named("errors: unknown model, bad value, too long, unknown route")
def errors(service: Service) -> str:
    client = client_of(service)

    def ask(text: str = "Hi", model: str = service.model, temperature: float = 1.0) -> object:
        return client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=temperature
        )

    found = [
        raised(openai.NotFoundError, lambda: ask(model="no-such-model")),
        raised(openai.BadRequestError, lambda: ask(temperature=9.0)),
        raised(openai.BadRequestError, lambda: ask(text="word " * 20_000)),
        raised(openai.NotFoundError, lambda: client.embeddings.create(model="m", input="x")),
    ]
    expect(found[0].param == "model", f"param {found[0].param!r} of an unknown model")
    expect(found[1].param == "temperature", f"param {found[1].param!r} of a bad temperature")
    codes = [error.code for error in found]
    expect(codes[2] == "context_length_exceeded", f"code {codes[2]!r} of a long prompt")
    return str(codes)


@checks.named("errors: a schema that cannot be served")
def schema_error(service: Service) -> str:
    error = raised(
        openai.BadRequestError,
        lambda: client_of(service).chat.completions.create(
            model=service.model,
            messages=[{"role": "user", "content": ORDER}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "no-such-type"}},
            },
        ),
    )
    return str(error.message)


@checks.named("errors: time-out of the client")
def timeout(service: Service) -> str:
    try:
        client_of(service).with_options(timeout=0.001).chat.completions.create(
            model=service.model, messages=[{"role": "user", "content": STORY}]
        )
    except openai.APITimeoutError as error:
        return str(error)
    expect(False, "no APITimeoutError")
    return ""
