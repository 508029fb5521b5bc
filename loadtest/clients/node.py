"""Clients of npm: packages in a folder of their own, made once and then kept, and Node to run them.

A script finds its packages in a `node_modules` beside it. So it is run from a copy in a folder that
has one. Where Node or npm is missing these clients are skipped, which is no failure.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from loadtest.clients.processes import path_of
from loadtest.clients.venvs import ensured

_MODULES = "node_modules"


def ensured_modules(folder: Path, name: str, requirements: Sequence[str]) -> Path:
    """Return a folder whose `node_modules` has the packages, as `ensured` does.

    Raises:
        NotHere: there is no Node or no npm.
        NotInstallable: npm failed or took too long; with its last error.
    """
    npm = path_of("npm")
    path_of("node")
    # No program of a package's runs while it is installed.
    options = ["--ignore-scripts", "--no-audit", "--no-fund"]
    return ensured(
        folder,
        name,
        requirements,
        lambda place: [[npm, "install", "--prefix", str(place), *options, *requirements]],
    )


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
