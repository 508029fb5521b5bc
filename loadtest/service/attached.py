"""A service that runs on this machine already, found by its URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

_RAYLET = "raylet/raylet"
_SERVE = "serve run"


@dataclass(frozen=True)
class Attached:
    """A running service that others started and will end. `folder`: Ray's session."""

    base_url: str
    folder: Path
    roots: tuple[psutil.Process, ...]

    def gcs_address(self) -> str:
        """Return the address of its Ray.

        Raises:
            RuntimeError: its raylet is gone.
        """
        return gcs_address(self.processes())

    def processes(self) -> list[psutil.Process]:
        """Return all its living processes, the root first."""
        found: dict[psutil.Process, None] = {}
        for root in self.roots:
            with contextlib.suppress(psutil.Error):
                found |= dict.fromkeys([root, *root.children(recursive=True)])
        return list(found)


def gcs_address(processes: Iterable[psutil.Process]) -> str:
    """Return the address of the Ray of a service with these processes.

    Its raylet has the address on the command line.

    Raises:
        RuntimeError: there is no raylet among them.
    """
    for process in processes:
        if address := _option(process, "--gcs-address"):
            return address
    raise RuntimeError("there is no raylet among the service's processes")


def attach(url: str) -> Attached:
    """Return the service that listens at `url`.

    Raises:
        ValueError: nobody listens there, or no Serve proxy of this user does.
    """
    listener = _listener(url)
    raylet = next((p for p in listener.parents() if _RAYLET in _command(p)), None)
    if raylet is None:
        raise ValueError(f"{url}: process {listener.pid} listens there, which no raylet started")
    folder = _option(raylet, "--session_dir")
    if not folder:
        raise ValueError(f"{url}: raylet {raylet.pid} does not name its session folder")
    # `serve run` is Ray's own root; after `ray start` every daemon is a root of its own.
    root = next((p for p in raylet.parents() if _SERVE in _command(p)), None)
    roots = (root,) if root is not None else (raylet, *_daemons(folder, raylet))
    return Attached(url.rstrip("/"), Path(folder), roots)


def _listener(url: str) -> psutil.Process:
    parts = urlsplit(url)
    port = parts.port or 80
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        if connection.laddr and connection.laddr.port == port:
            return psutil.Process(connection.pid)
    raise ValueError(
        f"{url}: no process of this machine that may be looked into listens at port {port}"
    )


def _daemons(folder: str, raylet: psutil.Process) -> list[psutil.Process]:
    known = {raylet, *raylet.children(recursive=True)}
    return [p for p in psutil.process_iter() if folder in _command(p) and p not in known]


def _option(process: psutil.Process, name: str) -> str:
    """Return the value after `name=` on the command line, or ""."""
    with contextlib.suppress(psutil.Error):
        for word in process.cmdline():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
    return ""


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
