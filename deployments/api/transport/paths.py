"""Paths as base URLs and proxies spell them: the route that can only be meant is the one taken.

A base URL with a slash at its end makes `//v1/models`, and health checks ask for `/health/`. A base
URL without `/v1` asks for `/chat/completions`. If a proxy added `/v1`, the request is for
`/v1/v1/models`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette._utils import get_route_path  # private, but the only one that cannot differ
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

_VERSION = "/v1"
_SLASHES = re.compile("/{2,}")


class PlainPaths:
    """Middleware: what comes behind it sees the path of the route that is meant.

    The record of the request keeps the path as it was asked for.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        paths = [route.path for route in routes if isinstance(route, Route)]
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._folders = tuple(path.partition("{")[0] for path in paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with another path where another route is meant."""
        if scope["type"] == "http":
            asked = get_route_path(scope)
            plain = self._plain(asked)
            if plain != asked:
                mounted_at = scope["path"][: len(scope["path"]) - len(asked)]
                scope = {**scope, "path": mounted_at + plain}
        await self._app(scope, receive, send)

    def _plain(self, asked: str) -> str:
        path = _SLASHES.sub("/", asked)
        if path != "/":
            path = path.rstrip("/")
        bare = path
        while bare.startswith(f"{_VERSION}/"):
            bare = bare.removeprefix(_VERSION)
        return next(filter(self._is_route, (path, f"{_VERSION}{bare}", bare)), path)

    def _is_route(self, path: str) -> bool:
        return path in self._paths or path.startswith(self._folders)
