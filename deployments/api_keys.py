"""API keys: who may use the routes under /v1. Standard library and ASGI only.

    python -m deployments.api_keys alice >> keys.txt     # the key itself goes to the terminal

A key file has one line `name digest` per client: a name for logs and metrics and the SHA-256 of the
key in hex, so that the file gives no key away. A plain hash is enough because keys are 256 random
bits. The file is read again when it changes (as a mounted Kubernetes secret does); one that cannot
be read or understood then leaves the keys as they were. Keys never reach a log or an answer.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.api.openai import Unauthorized

logger = logging.getLogger(__name__)

GUARDED_PREFIX = "/v1/"
_RELOAD_PERIOD_S = 1.0
_LINE = re.compile(r"(?P<name>[A-Za-z0-9._@-]{1,64})\s+(?P<digest>[0-9a-f]{64})")
_SCHEME = b"bearer "


class ApiKeys:
    """The keys of a file, at most a second older than it.

    Args:
        path: the key file.
        clock: seconds, monotonic.

    Raises:
        ValueError: the file cannot be read, has no key, or a line is not a name and a digest.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._names = read_key_file(path)
        self._checked_s = clock()

    def name_of(self, key: bytes) -> str | None:
        """The client that `key` belongs to; None: it is nobody's."""
        self._reload()
        digest = hashlib.sha256(key).hexdigest()
        found = None
        # All are compared, so that the time taken says nothing about how near a guess is.
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _reload(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s < _RELOAD_PERIOD_S:
            return
        self._checked_s = now_s
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._names = read_key_file(self._path)
        except ValueError as error:
            logger.error("API keys stay as they were: %s", error)
        else:
            logger.info("API keys read again: %d from %s", len(self._names), self._path)


def read_key_file(path: Path) -> Mapping[str, str]:
    """Names by digest.

    Raises:
        ValueError: names the file and the line at fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"router.api_keys_file: {path} cannot be read: {error}") from error
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:  # the line is not shown: it may hold a key by mistake
            raise ValueError(
                f"router.api_keys_file: line {number} of {path} is not 'name digest': a name of up "
                "to 64 letters, digits, '.', '_', '@' or '-', then 64 lower-case hex digits"
            )
        names[match["digest"]] = match["name"]
    if not names:
        raise ValueError(f"router.api_keys_file: {path} has no key, so nobody could be served")
    return names


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does, also where a link to it is turned to another file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class KeyGate:
    """Middleware: answers 401 under /v1 without a known key; notes the key's name in the scope."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, or raise.

        Raises:
            Unauthorized: no key, or none of the file.
        """
        if scope["type"] == "http" and scope["path"].startswith(GUARDED_PREFIX):
            key = _bearer(scope)
            if not key:
                raise Unauthorized("an API key is needed: 'Authorization: Bearer <key>'")
            name = self._keys.name_of(key)
            if name is None:
                raise Unauthorized("the API key in 'Authorization' is not known here")
            scope.setdefault("state", {})["client"] = name
        await self._app(scope, receive, send)


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(_SCHEME)].lower() == _SCHEME:
            return bytes(value[len(_SCHEME) :].strip())
    return b""


def main(argv: Sequence[str] | None = None) -> None:
    """Make a key: its line for the file on stdout, the key itself on stderr, nowhere else."""
    parser = argparse.ArgumentParser(
        prog="python -m deployments.api_keys",
        description="Make an API key: prints the key file's line to stdout, the key to stderr.",
    )
    parser.add_argument("name", help="whose key it is")
    name = parser.parse_args(argv).name
    key = f"sk-{secrets.token_urlsafe(32)}"
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if _LINE.fullmatch(line) is None:
        parser.error(f"name must be up to 64 letters, digits, '.', '_', '@' or '-', got {name!r}")
    sys.stderr.write(f"the key of {name}, shown this once: {key}\n")
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
