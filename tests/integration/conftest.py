"""Services that modules share, one at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.harness.deployed_demo import DeployedDemo
from tests.harness.held_services import HeldService
from tests.harness.production import Production
from tests.harness.served_demo import ServedDemo

_held = HeldService()


@pytest.fixture(scope="session")
def held() -> Iterator[HeldService]:
    """Also where a run is cut short nothing is left behind."""
    yield _held
    _held.end()


@pytest.fixture
def demo(held: HeldService) -> ServedDemo:
    """configs/demo.yaml under `serve run`; tests leave it whole, or wait until it is."""
    return held.get("demo")


@pytest.fixture
def demo_at_its_end(demo: ServedDemo, held: HeldService) -> Iterator[ServedDemo]:
    """The demo after all other tests that use it; this one may end it."""
    yield demo
    held.end()


@pytest.fixture
def deployed(held: HeldService) -> DeployedDemo:
    """As an operator may have it; see there. Tests leave it whole, or wait until it is."""
    return held.get("deployed")


@pytest.fixture
def bare_serve(held: HeldService) -> None:
    """Serve without an HTTP proxy; modules delete the applications that they run."""
    held.get("bare_serve")


@pytest.fixture
def production(held: HeldService) -> Production:
    """configs/prod.yaml on nodes in name; tests build on what those before them have left."""
    return held.get("production")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notice a failed test, which may have left a service that is not whole."""
    report = yield
    _held.note(report)
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what the next test does not use: one Ray cluster at a time."""
    _held.end_between(item, nextitem)
