"""Pages of other origins in a browser: Starlette's CORS, outside of all else.

A preflight carries no key, so it is answered before one is asked for. Refusals carry the headers as
well: a page could not read them otherwise. No cookie is used here, so credentials that a browser
adds by itself are not allowed. A page sends its key in `Authorization`, as any client does.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

_METHODS = ("GET", "HEAD", "POST")
# A page may read these of an answer's headers, besides those that every page may.
_SHOWN = ("x-request-id", "retry-after")
_MAX_AGE_S = 600  # how long a browser need not ask again


def cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that admits pages of `origins`; empty without any."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=_METHODS,
            allow_headers=["*"],  # clients send headers of their own: x-stainless-lang, ...
            expose_headers=_SHOWN,
            allow_private_network=True,  # a page of the internet may ask a server of the house
            max_age=_MAX_AGE_S,
        )
    ]
