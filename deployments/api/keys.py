"""API keys: who may use the routes that are not open, and the limits of each client.

A key file has one line `name digest` per key. It may go on with limits of the client, such as
`sessions=8 tokens_per_minute=60000 group=research`. The name is for logs and metrics. The digest is
the SHA-256 of the key in hex, so the file gives no key away. A plain hash is enough because keys
are 256 random bits. The file is read again when it changes (as a mounted Kubernetes secret does),
and its new content counts. A key that is no longer in it is refused, and a malformed line is
skipped and counted. Every request is refused if there is no key. Only a file that cannot be read at
all leaves the keys as they were. Keys never reach a log or an answer.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starlette._utils import get_route_path  # private, but the only one that cannot differ
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.api.schemas.requests import Unauthorized
from router.types import GenerationRequest

logger = logging.getLogger(__name__)

_RELOAD_PERIOD_S = 1.0
_MAX_REPORTED = 3  # faults of one file; the number of all is a metric
_NAME = r"[A-Za-z0-9._@-]{1,64}"
KEY_LINE = re.compile(rf"(?P<name>{_NAME})\s+(?P<digest>[0-9a-f]{{64}})(?P<limits>(\s+\w+=\S+)*)")
_LIMITS = {  # of a line: the pattern of each value
    "sessions": re.compile(r"[1-9]\d{0,6}"),
    "tokens_per_minute": re.compile(r"[1-9]\d{0,12}"),
    "group": re.compile(_NAME),
}
_SCHEME = b"bearer "
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


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The content of a key file."""

    tenants: Mapping[str, Tenant]  # by digest
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

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Return the client that `key` belongs to; None if it belongs to no client.

        The time it takes says nothing of a key, because the digest of a near guess is not near.
        """
        self._reload()
        return self._file.tenants.get(hashlib.sha256(key).hexdigest())

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
        logger.info("API keys: %d read from %s", len(file.tenants), self._path)
        if not file.tenants:
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
        if path.exists() and not path.is_file():  # a device may never end
            raise OSError("it is no regular file")
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ValueError(f"router.api_keys_file: {path} cannot be read: {error}") from error
    tenants: dict[str, Tenant] = {}
    faults: list[str] = []
    for number, whole_line in enumerate(text.splitlines(), 1):
        line = whole_line.split("#", 1)[0].strip()
        if not line:
            continue
        match = KEY_LINE.fullmatch(line)
        where = f"router.api_keys_file: line {number} of {path}"
        if match is None:
            faults.append(
                f"{where} is not 'name digest': a name of up to 64 letters, digits, '.', '_', '@' "
                "or '-', then 64 lower-case hex digits, then limits like sessions=8, if any"
            )
            continue
        try:
            tenants[match["digest"]] = _tenant(match["name"], match["limits"])
        except ValueError as error:
            faults.append(f"{where}, {match['name']}: {error}")
    return KeyFile(tenants, faults)


def _tenant(name: str, limits: str) -> Tenant:
    """Return a line's client.

    Raises:
        ValueError: names the limit that is not known or has no such value.
    """
    values = dict(limit.split("=", 1) for limit in limits.split())
    for key, value in values.items():
        if key not in _LIMITS:
            raise ValueError(f"{key} is no limit, there are {', '.join(_LIMITS)}")
        if _LIMITS[key].fullmatch(value) is None:
            kind = "a name" if key == "group" else "a whole number from 1 on"
            raise ValueError(f"{key} must be {kind}, got {value!r}")
    sessions, tokens = values.get("sessions"), values.get("tokens_per_minute")
    return Tenant(
        name=name,
        max_sessions=None if sessions is None else int(sessions),
        tokens_per_minute=None if tokens is None else int(tokens),
        group=values.get("group", ""),
    )


def faults_of_keys(path: Path) -> list[str]:
    """Whatever is wrong with a key file, one sentence each."""
    try:
        file = read_key_file(path)
    except ValueError as error:
        return [str(error)]
    return [*file.faults[:_MAX_REPORTED], *([] if file.tenants else [_no_key(path)])]


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
    """Middleware: 401 without a known key, but for `open_paths`; notes its client in the scope.

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
            tenant = self._keys.tenant_of(key)
            if tenant is None:
                raise Unauthorized("the API key in 'Authorization' is not known here")
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def tenant_in(scope: Scope) -> Tenant:
    """Return the client whose request it is; where no key is asked for it is anybody's."""
    tenant: Tenant = scope.get("state", {}).get("tenant", ANYBODY)
    return tenant


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(_SCHEME)].lower() == _SCHEME:
            return bytes(value[len(_SCHEME) :].strip())
    return b""
