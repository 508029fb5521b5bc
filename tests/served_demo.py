"""`serve run configs/demo.yaml` as a user starts it, on a free port, with a private Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from loadtest.served import ROOT, Served, served

ServedDemo = Served


@contextlib.contextmanager
def served_demo() -> Iterator[ServedDemo]:
    with served(ROOT / "configs" / "demo.yaml") as service:
        yield service
