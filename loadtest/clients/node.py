"""Clients of npm: packages in a folder of their own, made once and then kept, and Node to run them.

A script finds its packages in a `node_modules` beside it. So it is run from a copy in a folder that
has one. Where Node or npm is missing these clients are skipped, which is no failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from loadtest.clients.processes import path_of, run_bounded
from loadtest.clients.venvs import INSTALL_TIMEOUT_S, NotInstallable

_MODULES = "node_modules"
_READY = "installed.txt"


def ensured_modules(folder: Path, name: str, requirements: Sequence[str]) -> Path:
    """Return a folder whose `node_modules` has the packages; an old one is reused.

    Raises:
        NotHere: there is no Node or no npm.
        NotInstallable: npm failed or took too long; with its last error.
    """
    npm, asked = path_of("npm"), "\n".join(requirements)
    path_of("node")
    plain = re.sub(r"[^\w-]+", "-", name).strip("-")
    place = folder / f"{plain}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    if (place / _READY).exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    # No program of a package's runs while it is installed.
    command = [
        npm,
        "install",
        "--prefix",
        str(place),
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ]
    # npm wants the caller's settings: registry, proxies, certificates.
    ended = run_bounded(
        [*command, *requirements], environment=os.environ, folder=place, timeout_s=INSTALL_TIMEOUT_S
    )
    if why := ended.why(INSTALL_TIMEOUT_S):
        raise NotInstallable(f"not installed: {why}")
    (place / _READY).write_text(f"{asked}\n", encoding="utf-8")
    return place


def module_version(place: Path, package: str) -> str:
    """Return the version of a package in a folder of `ensured_modules`; "" if it is not there."""
    try:
        content = json.loads((place / _MODULES / package / "package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    return str(content.get("version", ""))


def script_command(script: Path, place: Path, folder: Path) -> list[str]:
    """Return the command that runs a copy of a script in `folder`, with the packages of `place`.

    Raises:
        OSError: the script or the folder is not there.
    """
    for module in script.parent.glob(f"*{script.suffix}"):  # it may import those beside it
        shutil.copy(module, folder)
    (folder / _MODULES).symlink_to(place / _MODULES, target_is_directory=True)
    return [path_of("node"), script.name]
