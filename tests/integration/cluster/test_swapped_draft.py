"""A draft model is swapped by `user_config` while streams run: no text changes, none is lost.

A real service on a private cluster; every stream is compared with the text it had before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.service.served import options
from tests.harness.held_services import HeldService
from tests.harness.local import DEMO
from tests.harness.production import KEY, Production, check_texts, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("production"),
]

NUM_STREAMS = 8


class Swapping:
    """The service, its streams, and what is seen of the swap."""

    def __init__(self, running: Production, load: FaultLoad) -> None:
        self._running, self.load = running, load

    def ask_for(self, user_config: dict[str, Any] | None) -> None:
        config = self._running.config()
        if user_config is not None:
            options(config, "Draft")["user_config"] = user_config
        self._running.cluster.deploy(config)

    def value(self, name: str, **labels: str) -> float:
        """Return a metric of the draft replica, from a router's page."""
        page = httpx.get(f"{self._running.cluster.base_url}/metrics", timeout=20).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in page.splitlines():
            if line.startswith(f"{name}{{") and all(one in line for one in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0

    def is_in(self, state: str) -> bool:
        return self.value("outrider:draft_swap", state=state) == 1.0

    def pids(self) -> set[int]:
        return {part.pid for part in self._running.service.parts()["draft-rank"]}

    def replica(self) -> set[int]:
        return {part.pid for part in self._running.service.parts()["draft-coordinator"]}


@pytest.fixture
def swapping(held: HeldService) -> Iterator[Swapping]:
    running: Production = held.get("production")
    running.make_whole()
    cases = [*free_cases(NUM_STREAMS - 2, num_tokens=120), *constrained_cases(2)]
    load = FaultLoad(running.cluster.base_url, cases, api_key=KEY)
    load.prepare()
    load.start()
    try:
        yield Swapping(running, load)
    finally:
        load.stop()
    assert load.take_failures() == []
    assert running.service.wait_freed(60) == []


@pytest.mark.day(2)
def test_a_draft_model_is_swapped_under_streams(swapping: Swapping, tmp_path: Path) -> None:
    [first], replica = swapping.pids(), swapping.replica()
    check_texts(swapping.load)

    # The target's own weights as a draft: it says all of the texts, the shipped draft does not.
    swapping.ask_for({"model_path": str(DEMO / "target"), "compare_answers": 6})
    wait_for(lambda: swapping.is_in("promoted"), "not promoted")
    said = {
        model: swapping.value("outrider:draft_swap_tokens_total", model=model, said="yes")
        for model in ("old", "new")
    }
    assert said["new"] > said["old"] > 0
    wait_for(lambda: first not in swapping.pids(), "the old model was not freed")
    [second] = swapping.pids()
    check_texts(swapping.load)

    # Not there: refused by what a check reads, and the old one serves on.
    swapping.ask_for({"model_path": str(tmp_path / "nothing")})
    wait_for(lambda: swapping.value("outrider:draft_swap_refused") == 1.0, "not refused")
    assert swapping.pids() == {second}
    check_texts(swapping.load)

    # Taken away: the model of `args` comes back.
    swapping.ask_for(None)
    wait_for(lambda: swapping.is_in("promoted"), "not promoted")
    wait_for(lambda: second not in swapping.pids(), "the other model was not freed")
    assert swapping.value("outrider:draft_swap_refused") == 0.0
    check_texts(swapping.load)
    assert swapping.replica() == replica, "the replica was replaced"
