"""OpenAI's own client: every refusal becomes the exception that its users catch."""

from __future__ import annotations

from collections.abc import Callable

import openai

from loadtest.clients.scripts.checks import ORDER, Checks, Service, expect
from loadtest.clients.scripts.openai_parts.client import asked, chat, client_of

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
    def ask(text: str = "Hi", **options: object) -> object:
        return chat(service, text, **{"temperature": 1.0, **options})

    found = [
        raised(openai.NotFoundError, lambda: ask(model="no-such-model")),
        raised(openai.BadRequestError, lambda: ask(temperature=9.0)),
        raised(openai.BadRequestError, lambda: ask(text="word " * 20_000)),
        raised(
            openai.NotFoundError, lambda: client_of(service).embeddings.create(model="m", input="x")
        ),
    ]
    expect(found[0].param == "model", f"param {found[0].param!r} of an unknown model")
    expect(found[1].param == "temperature", f"param {found[1].param!r} of a bad temperature")
    codes = [error.code for error in found]
    expect(codes[2] == "context_length_exceeded", f"code {codes[2]!r} of a long prompt")
    return str(codes)


@checks.named("errors: a schema that cannot be served")
def schema_error(service: Service) -> str:
    schema = {"name": "s", "schema": {"type": "no-such-type"}}
    wanted = {"type": "json_schema", "json_schema": schema}
    error = raised(openai.BadRequestError, lambda: chat(service, ORDER, response_format=wanted))
    return str(error.message)


@checks.named("errors: time-out of the client")
def timeout(service: Service) -> str:
    try:
        client_of(service).with_options(timeout=0.001).chat.completions.create(**asked(service))
    except openai.APITimeoutError as error:
        return str(error)
    expect(False, "no APITimeoutError")
    return ""
