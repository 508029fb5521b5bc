"""API keys: who may use the routes that are not open. Standard library and ASGI only.

A key file has one line `name digest` per client. The name is for logs and metrics. The digest is
the SHA-256 of the key in hex, so the file gives no key away. A plain hash is enough because keys
are 256 random bits. The file is read again when it changes (as a mounted Kubernetes secret does),
and its new content counts. A key that is no longer in it is refused, and a malformed line is
skipped and counted. Every request is refused if there is no key. Only a file that cannot be read at
all leaves the keys as they were. Keys never reach a log or an answer.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette._utils import get_route_path  # private, but the only one that cannot differ
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.api.schemas.requests import Unauthorized

logger = logging.getLogger(__name__)

_RELOAD_PERIOD_S = 1.0
_MAX_REPORTED = 3  # faults of one file; the number of all is a metric
KEY_LINE = re.compile(r"(?P<name>[A-Za-z0-9._@-]{1,64})\s+(?P<digest>[0-9a-f]{64})")
_SCHEME = b"bearer "


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The content of a key file."""

    names: Mapping[str, str]  # by digest
    faults: Sequence[str]  # one for each skipped line; without its text, which may hold a key


class ApiKeys:
    """The keys of a file, at most a second older than it.

    Args:
        path: the key file. A replica starts with the lines that are right, also with none, so
            that new replicas do what running ones do; `faults_of_keys` is for the operator who
            deploys it.
        clock: seconds, monotonic.

    Raises:
        ValueError: the file cannot be read.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._unreadable: str | None = None
        self._file = self._taken(read_key_file(path))
        self._checked_s = clock()

    @property
    def num_refused(self) -> int:
        """Lines of the file that are skipped, or 1 while it cannot be read."""
        self._reload()
        return len(self._file.faults) if self._unreadable is None else 1

    def name_of(self, key: bytes) -> str | None:
        """Return the client that `key` belongs to; None if it belongs to no client."""
        self._reload()
        digest = hashlib.sha256(key).hexdigest()
        found = None
        # All are compared, so that the time taken says nothing about how near a guess is.
        for known, name in self._file.names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _reload(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s < _RELOAD_PERIOD_S:
            return
        self._checked_s = now_s
        stamp = _stamp(self._path)
        if stamp == self._stamp and self._unreadable is None:
            return
        try:
            self._file = self._taken(read_key_file(self._path))
        except ValueError as error:
            if str(error) != self._unreadable:  # once, although it is tried again
                logger.error("API keys stay as they were: %s", error)
            self._unreadable = str(error)
        else:
            self._unreadable = None
        self._stamp = stamp

    def _taken(self, file: KeyFile) -> KeyFile:
        logger.info("API keys: %d read from %s", len(file.names), self._path)
        if not file.names:
            logger.error("%s", _no_key(self._path))
        for fault in file.faults[:_MAX_REPORTED]:
            logger.error("API key skipped: %s", fault)
        return file


def read_key_file(path: Path) -> KeyFile:
    """Read the keys of a file.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ValueError(f"router.api_keys_file: {path} cannot be read: {error}") from error
    names: dict[str, str] = {}
    faults: list[str] = []
    for number, whole_line in enumerate(text.splitlines(), 1):
        line = whole_line.split("#", 1)[0].strip()
        if not line:
            continue
        match = KEY_LINE.fullmatch(line)
        if match is None:
            faults.append(
                f"router.api_keys_file: line {number} of {path} is not 'name digest': a name of up "
                "to 64 letters, digits, '.', '_', '@' or '-', then 64 lower-case hex digits"
            )
        else:
            names[match["digest"]] = match["name"]
    return KeyFile(names, faults)


def faults_of_keys(path: Path) -> list[str]:
    """Whatever is wrong with a key file, one sentence each."""
    try:
        file = read_key_file(path)
    except ValueError as error:
        return [str(error)]
    return [*file.faults[:_MAX_REPORTED], *([] if file.names else [_no_key(path)])]


def _no_key(path: Path) -> str:
    return f"router.api_keys_file: {path} has no key, so nobody could be served"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with the file, even if a link is turned to another file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class KeyGate:
    """Middleware: 401 without a known key, but for `open_paths`; notes its name in the scope.

    The path is the one that starlette's router goes by. It does not have the mount point
    (`root_path`) of a server in front, such as Serve with a `route_prefix`.
    """

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, open_paths: Collection[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, or raise.

        Raises:
            Unauthorized: no key, or none of the file.
        """
        if scope["type"] == "http" and get_route_path(scope) not in self._open_paths:
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
