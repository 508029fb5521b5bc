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
# Those of `cores.HELD`.
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
        self._is_spoilt = False
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
        self._name, self._service, self._is_spoilt = "", None, False
        self._until.close()

    def note(self, report: pytest.TestReport) -> None:
        """Note how a test ended; after a failure the next module begins with a new service."""
        self._is_spoilt = self._is_spoilt or report.failed

    def end_between(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """End what runs unless the test that follows this one uses it, and it is not spoilt."""
        goes_on = following is not None and following.path == item.path
        if self._name not in service_of(following) or (self._is_spoilt and not goes_on):
            self.end()
