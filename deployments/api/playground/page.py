"""Pages for people: the playground at the root, the API's at /docs. Plain files, no build step.

They are served without an API key, because a browser cannot send one before there is a page. Their
requests to the API need the key like any client's. A page asks its reader for it, and keeps it in
the tab. Pages name their files and the API relative to their own address, so they work under any
prefix. Nothing is loaded from elsewhere, nothing is inline, and the browser is told to hold them to
that.
"""

from __future__ import annotations

from pathlib import Path

from starlette._utils import get_route_path  # private, but the only one that cannot differ
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FILES = Path(__file__).parent / "static"
_MOUNT = "/playground"
# These paths need no key; "" is a prefix without a slash behind it.
PAGE_PATHS = frozenset({"", "/", *(f"{_MOUNT}/{path.name}" for path in _FILES.iterdir())})
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # asks each time, and is told that nothing has changed
}


class _Files(StaticFiles):
    """The pages' own files, with their headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


_files = _Files(directory=_FILES)


def playground_files() -> Mount:
    """Return the route of the pages' files, below `/playground`."""
    return Mount(_MOUNT, _files)


async def playground_page(request: Request) -> Response:
    """Return the page of `/`."""
    if not get_route_path(request.scope):  # the page's links are relative to its folder
        return RedirectResponse(request.scope["path"] + "/")
    return await _files.get_response("index.html", request.scope)


async def docs_page(request: Request) -> Response:
    """Return the page of `/docs`."""
    return await _files.get_response("docs.html", request.scope)
