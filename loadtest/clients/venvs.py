"""A virtual environment for each client, made once per set of requirements and then kept."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.clients.processes import run_bounded

CREATE_TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 1200.0  # GuideLLM brings torch
_VERSION_TIMEOUT_S = 30.0
_READY = "installed.txt"


class NotInstallable(Exception):
    """pip could not install a client here."""


def default_folder() -> Path:
    """Return the default folder of the environments."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "outrider" / "clients"


def ensured_venv(folder: Path, name: str, requirements: Sequence[str]) -> Path:
    """Return the `bin` of an environment that has the requirements; an old one is reused.

    Raises:
        NotInstallable: no environment, or pip failed or took too long; with pip's last error.
    """
    asked = "\n".join([f"python {sys.version_info.major}.{sys.version_info.minor}", *requirements])
    # Other requirements make another environment: none is ever changed or removed.
    place = folder / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    bin_folder = place / "bin"
    ready = place / _READY
    if ready.exists():
        return bin_folder
    place.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(place)], place, CREATE_TIMEOUT_S)
    pip = [str(bin_folder / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    _run([*pip, *requirements], place, INSTALL_TIMEOUT_S)
    ready.write_text(f"{asked}\n", encoding="utf-8")
    return bin_folder


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


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> None:
    # pip and venv want the caller's settings: indexes, proxies, certificates.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = run_bounded(command, environment=environment, folder=folder, timeout_s=timeout_s)
    if why := ended.why(timeout_s):
        raise NotInstallable(f"not installed: {why}")
