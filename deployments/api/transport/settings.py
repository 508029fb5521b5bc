"""Settings for browsers and proxies between a client and the routes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from models.config import PositiveInt, Section

ANY_ORIGIN = "*"
_NO_ORIGIN = "null"  # sent by a browser for a page of a file
# A browser writes `Origin` like this: no path, no slash at the end, no capital letters.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")


class HttpConfig(Section):
    """Browsers and proxies between a client and the routes."""

    allowed_origins: list[str] = Field(
        default_factory=list,
        description="origins of web pages that may use the API from a browser (CORS), like "
        '["https://chat.example.com"], or ["*"] for every page; empty: none but our own',
    )
    heartbeat_s: Annotated[float, Field(ge=0)] = Field(
        default=2.0,
        description="a stream that was sent nothing for so long, its headers included, is sent a "
        "comment line, because proxies cut silent connections, many after 60 s, and clients "
        "know by it that the router lives: the playground and deployments.streams give one up "
        "after 6 s; an error after the first is an event; 0: never",
    )
    whole_heartbeat_s: Annotated[float, Field(ge=0)] = Field(
        default=45.0,
        description="the same for an answer that is not streamed, which is sent its headers and a "
        "line break before its JSON; an error after that ends the connection, since the status "
        "200 is sent already; 0: never",
    )

    stream_interval: PositiveInt = Field(
        default=1,
        description="tokens of all its choices that a stream gathers before it sends their events, "
        "its first and last ones apart: each write costs Serve's proxy and the router time; text "
        "comes in bursts, and what is gathered waits for the next token, through a fail-over too",
    )

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if origin not in (ANY_ORIGIN, _NO_ORIGIN) and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "an origin is scheme://host or scheme://host:port in small letters, without a "
                    f"path or a slash at the end, or {ANY_ORIGIN} or {_NO_ORIGIN}, got {origin!r}"
                )
        return origins
