"""GET /docs: the OpenAPI page for people. One static file, which asks for /openapi.json alone.

The file is served without an API key, because a browser cannot send one before there is a page. It
contains nothing about this server. The content that it shows does, and needs the key. The page asks
its reader for the key, keeps it in the tab and sends it to /openapi.json alone. Style and script
are in the file and named by their hashes. So a browser runs nothing else in a page where a key was
typed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path

from starlette.responses import Response

_FILE = Path(__file__).parent / "docs.html"
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, dict[str, str]]:
    """Read the file and the headers that bind a browser to it."""
    text = _FILE.read_text(encoding="utf-8")
    inline = {tag: _source(content) for tag, content in _INLINE.findall(text)}
    policy = (
        f"default-src 'none'; style-src {inline['style']}; script-src {inline['script']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return text.encode(), {
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


def _source(content: str) -> str:
    """Return an inline element as a source of a content security policy (CSP level 2, 4.2)."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def docs_page() -> Response:
    """Return the page."""
    text, headers = _page()
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)
