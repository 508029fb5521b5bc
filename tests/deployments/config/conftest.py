"""A model's folder that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.harness.local import DEMO


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo's draft model."""
    return Path(shutil.copytree(DEMO / "draft", tmp_path / "model"))
