"""Makes the packages that pyproject.toml names, empty: enough to install what they depend on.

Run by the Dockerfile in a folder that has pyproject.toml and no sources yet.
"""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
for name in project["tool"]["setuptools"]["packages"]:
    folder = Path(*name.split("."))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
