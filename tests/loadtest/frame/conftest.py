"""A binary that behaves like llama-server as far as the comparison sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

STUB = Path(__file__).with_name("stub_llama_server.py")


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    path.chmod(0o755)
    return path
