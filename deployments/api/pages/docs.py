"""GET /docs: the OpenAPI page for people. One static file, which asks for /openapi.json alone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fastapi.responses import Response

_FILE = Path(__file__).parent / "docs.html"
# It is all in the file, so a browser may refuse whatever else it should ask for.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@lru_cache(maxsize=1)
def _page() -> bytes:
    return _FILE.read_bytes()


def docs_page() -> Response:
    """The page."""
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
    return Response(_page(), media_type="text/html; charset=utf-8", headers=headers)
