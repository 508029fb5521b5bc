"""A folder for each client, made once per set of requirements and then kept."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.clients.processes import run_bounded

_INSTALL_TIMEOUT_S = 1200.0  # GuideLLM brings torch
_VERSION_TIMEOUT_S = 30.0
_READY = "installed.txt"


class NotInstallable(Exception):
    """A client could not be installed here."""


def default_folder() -> Path:
    """Return the default folder of the environments."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "outrider" / "clients"


def ensured(
    folder: Path, name: str, asked: Sequence[str], commands: Callable[[Path], Sequence[list[str]]]
) -> Path:
    """Return a folder of the client in which the commands have ended well; an old one is reused.

    Args:
        folder: of all clients.
        name: of the client.
        asked: what is installed; other words make another folder, and none is changed or removed.
        commands: what installs it, given its folder.

    Raises:
        NotInstallable: one failed or took too long; with its last error.
    """
    text = "\n".join(asked)
    plain = re.sub(r"[^\w-]+", "-", name).strip("-")
    place = folder / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if (place / _READY).exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    # They want the caller's settings: indexes, registries, proxies, certificates.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in commands(place):
        ended = run_bounded(
            command, environment=environment, folder=place, timeout_s=_INSTALL_TIMEOUT_S
        )
        if why := ended.why(_INSTALL_TIMEOUT_S):
            raise NotInstallable(f"not installed: {why}")
    (place / _READY).write_text(f"{text}\n", encoding="utf-8")
    return place


def ensured_venv(folder: Path, name: str, requirements: Sequence[str]) -> Path:
    """Return the `bin` of an environment that has the requirements, as `ensured` does."""

    def commands(place: Path) -> list[list[str]]:
        python = str(place / "bin" / "python")
        return [
            [sys.executable, "-m", "venv", str(place)],
            [python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *requirements],
        ]

    version = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return ensured(folder, name, [version, *requirements], commands) / "bin"


def installed_version(bin_folder: Path, package: str) -> str:
    """Return the version of a package in an environment; "" if it is not there."""
    program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    ended = run_bounded(
        [str(bin_folder / "python"), "-c", program, package],
        environment=os.environ,
        folder=bin_folder.parent,
        timeout_s=_VERSION_TIMEOUT_S,
    )
    return ended.output.strip() if ended.status == 0 else ""
