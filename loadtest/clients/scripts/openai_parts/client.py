"""OpenAI's own client, and what the parts of its script ask it for."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from loadtest.clients.scripts.checks import STORY, TIMEOUT_S, Service


def client_of(service: Service) -> OpenAI:
    """Return a client that tries once."""
    return OpenAI(base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0)


def asked(service: Service, text: str = STORY, **options: Any) -> dict[str, Any]:
    """Return the fields of a chat of one message."""
    return {
        "model": service.model,
        "messages": [{"role": "user", "content": text}],
        **options,
    }


def chat(service: Service, text: str = STORY, **options: Any) -> Any:
    """Ask for a chat of one message."""
    return client_of(service).chat.completions.create(**asked(service, text, **options))


def complete(service: Service, prompt: Any = "Once upon a time", **options: Any) -> Any:
    """Ask for a text completion."""
    return client_of(service).completions.create(model=service.model, prompt=prompt, **options)


def respond(service: Service, given: Any = STORY, **options: Any) -> Any:
    """Ask for a response."""
    return client_of(service).responses.create(model=service.model, input=given, **options)
