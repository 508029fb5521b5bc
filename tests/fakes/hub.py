"""A stand-in of the model hub: the routes that its client asks for one repository, `tiny/words`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.cache import sha256_of
from tests.fakes.scripted_server import Request, Script, answer, scripted_server

COMMIT = "a" * 40
REPOSITORY = "tiny/words"
_REVISIONS = ("main", "v1", COMMIT)
_API, _FILES = f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/resolve/"


@dataclass(frozen=True)
class _Hub:
    """The routes; `folder`: the only repository, `asked`: the names of files that were sent."""

    folder: Path
    sums: Mapping[str, str]
    asked: list[str]

    def __call__(self, request: Request) -> None:
        path = request.path.split("?")[0].replace("%2F", "/")
        self._script(path, is_sent=request.command == "GET")(request)

    def _script(self, path: str, *, is_sent: bool) -> Script:
        files = sorted(one for one in self.folder.rglob("*") if one.is_file())
        if not path.startswith((_API, _FILES)):
            return _refused("RepoNotFound", 401)
        for route in (f"{_API}/tree/", f"{_API}/revision/", _FILES):
            if path.startswith(route) and path[len(route) :].split("/")[0] not in _REVISIONS:
                return _refused("RevisionNotFound", 404)
        if path.startswith(f"{_API}/tree/"):
            body = json.dumps([self._entry(file, "path") | {"type": "file"} for file in files])
            return answer(body.encode())
        if path.startswith(_API):
            siblings = [self._entry(file, "rfilename") for file in files]
            body = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings})
            return answer(body.encode())
        name = path.removeprefix(_FILES).partition("/")[2]
        if not (self.folder / name).is_file():
            return _refused("EntryNotFound", 404)
        content = (self.folder / name).read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        if is_sent:
            self.asked.append(name)
        return answer(content, headers={"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    def _entry(self, file: Path, key: str) -> dict[str, Any]:
        name = file.relative_to(self.folder).as_posix()
        entry: dict[str, Any] = {key: name, "size": file.stat().st_size, "oid": "b" * 40}
        if file.suffix == ".safetensors":
            digest = self.sums.get(file.name, sha256_of(file))
            lfs = {"sha256": digest, "oid": digest, "size": file.stat().st_size, "pointerSize": 1}
            entry["lfs"] = lfs
        return entry


def _refused(code: str, status: int) -> Script:
    return answer(b"", status, headers={"X-Error-Code": code})


@contextmanager
def hub(
    folder: Path, sums: Mapping[str, str] | None = None, asked: list[str] | None = None
) -> Iterator[str]:
    """Serve a folder as the repository; its endpoint. `sums` are claimed of its weights."""
    with scripted_server(_Hub(folder, sums or {}, [] if asked is None else asked)) as server:
        yield server.url


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
