"""What the image's build does before the sources are there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_there_before_its_sources(tmp_path: Path) -> None:
    assert "RUN python k8s/empty_packages.py" in (ROOT / "k8s" / "Dockerfile").read_text()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for _ in range(2):  # again where some are there already
        command = [sys.executable, str(ROOT / "k8s" / "empty_packages.py")]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package in project["tool"]["setuptools"]["packages"]:
        assert (tmp_path / package.replace(".", "/") / "__init__.py").is_file(), package


def test_every_package_is_named() -> None:
    """Setuptools takes what pyproject.toml lists and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = set(project["tool"]["setuptools"]["packages"])
    found = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for folder in ("deployments", "models", "router", "loadtest")
        for file in (ROOT / folder).rglob("__init__.py")
    }
    assert found == named
