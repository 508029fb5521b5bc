"""A stand-in of the model hub: the routes that its client asks for one repository, `tiny/words`."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.cache import sha256_of

COMMIT = "a" * 40
REPOSITORY = "tiny/words"
_REVISIONS = ("main", "v1", COMMIT)
_API, _FILES = f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/resolve/"


class Hub(http.server.BaseHTTPRequestHandler):
    """The routes; `folder`: the only repository, `asked`: the names of files that were sent."""

    folder: Path
    sums: dict[str, str]
    asked: list[str]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0].replace("%2F", "/")
        files = sorted(one for one in self.folder.iterdir() if one.is_file())
        if not path.startswith((_API, _FILES)):
            return self._refuse("RepoNotFound", 401)
        for route in (f"{_API}/tree/", f"{_API}/revision/", _FILES):
            if path.startswith(route) and path[len(route) :].split("/")[0] not in _REVISIONS:
                return self._refuse("RevisionNotFound", 404)
        if path.startswith(f"{_API}/tree/"):
            body = json.dumps([self._entry(file, "path") | {"type": "file"} for file in files])
            return self._send(body.encode(), {}, with_body=with_body)
        if path.startswith(_API):
            siblings = [self._entry(file, "rfilename") for file in files]
            body = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings})
            return self._send(body.encode(), {}, with_body=with_body)
        name = path.rpartition("/")[2]
        if not (self.folder / name).is_file():
            return self._refuse("EntryNotFound", 404)
        content = (self.folder / name).read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        if with_body:
            self.asked.append(name)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}
        return self._send(content, headers, with_body=with_body)

    def _entry(self, file: Path, key: str) -> dict[str, Any]:
        entry: dict[str, Any] = {key: file.name, "size": file.stat().st_size, "oid": "b" * 40}
        if file.suffix == ".safetensors":
            digest = self.sums.get(file.name, sha256_of(file))
            lfs = {"sha256": digest, "oid": digest, "size": file.stat().st_size, "pointerSize": 1}
            entry["lfs"] = lfs
        return entry

    def _refuse(self, code: str, status: int) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def hub(
    folder: Path, sums: dict[str, str] | None = None, asked: list[str] | None = None
) -> Iterator[str]:
    """Serve a folder as the repository; its endpoint. `sums` are claimed of its weights."""
    fields = {"folder": folder, "sums": sums or {}, "asked": [] if asked is None else asked}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), fields))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def hub_environment(endpoint: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process whose hub this is, with a cache of its own in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF")}
    return {**kept, **hub_variables(endpoint, home), **more}


def hub_variables(endpoint: str, home: Path) -> dict[str, str]:
    """The variables that make this the hub of a process, with a cache in `home`."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
