"""OpenAI's own client, as the parts of its script make it."""

from __future__ import annotations

from openai import OpenAI

from loadtest.clients.scripts.checks import TIMEOUT_S, Service


def client_of(service: Service) -> OpenAI:
    """Return a client that tries once."""
    return OpenAI(base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0)
