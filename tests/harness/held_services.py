"""Services that many tests use, one at a time: a start and an end cost half a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from loadtest.report.machine import ROOT
from tests.harness.deployed_demo import deployed_demo
from tests.harness.private_serve import private_serve
from tests.harness.production import production
from tests.harness.runs.cores import service_of
from tests.harness.served_demo import served_demo

_NUM_CPUS = 4  # in name
_OF_CLUSTERS = ROOT / "tests" / "integration" / "cluster"  # has deployments of its own
SERVICES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bare_serve": lambda: private_serve(_NUM_CPUS, _OF_CLUSTERS),
    "demo": served_demo,
    "deployed": deployed_demo,
    "production": production,
}


class HeldService:
    """One of `SERVICES`, from the first test that asks for it to the last one in a row."""

    def __init__(self) -> None:
        self._name = ""
        self._service: Any = None
        self._until = contextlib.ExitStack()

    def get(self, name: str) -> Any:
        """The service of this name, which runs; another one that ran has ended."""
        if self._name != name:
            self.end()
            self._service = self._until.enter_context(SERVICES[name]())
            self._name = name
        return self._service

    def end(self) -> None:
        """End what runs."""
        self._name, self._service = "", None
        self._until.close()

    def end_before(self, item: pytest.Item | None) -> None:
        """End what runs unless this test, the next one, uses it."""
        if self._name not in service_of(item):
            self.end()
