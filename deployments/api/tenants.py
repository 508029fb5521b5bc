"""The clients that a router tells apart: each has a name, limits, and a salt of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.types import GenerationRequest

_APART = "\x1f"  # between the part of a salt that is the client's and the part that it asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A client, by its API key; the limits are those of one router.

    Attributes:
        name: in logs and metrics; keys of one name are one client.
        max_sessions: choices that run at once; None: as many as the router has places for.
        tokens_per_minute: prompts and answers together; None: no limit.
        group: clients of one group share cached prefixes and remembered answers; empty: with
            nobody else.
    """

    name: str = ""
    max_sessions: int | None = None
    tokens_per_minute: int | None = None
    group: str = ""

    def salted(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the client's salt, so that nothing tells it of others' texts."""
        if not self.name:
            return request
        own = f"group {self.group}" if self.group else f"client {self.name}"
        return replace(request, cache_salt=f"{own}{_APART}{request.cache_salt}")


ANYBODY = Tenant()  # where no key is asked for
