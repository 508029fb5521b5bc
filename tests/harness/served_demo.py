"""`serve run` on a shipped config as a user starts it, on a free port, with a private Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from loadtest.report.machine import ROOT
from loadtest.service.served import Served, served

ServedDemo = Served


@contextlib.contextmanager
def served_demo(config: str = "demo.yaml") -> Iterator[ServedDemo]:
    """Serve configs/`config` until the block ends."""
    with served(ROOT / "configs" / config) as service:
        yield service
