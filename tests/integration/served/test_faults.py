"""Processes of the served demo die under streams that must not notice: `loadtest.faults` in small.

The full campaign, every kind of process twenty times over, is `python -m loadtest.faults`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loadtest.client.answers import Answer
from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.faults.campaign import Campaign, Fault, Outcome
from loadtest.report.machine import ROOT
from loadtest.service.parts import FaultService
from loadtest.service.served import Config, section, served

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STREAMS = 3  # free ones, and as many constrained
FREED_LIMIT_S = 60.0
FAULTS = [
    Fault(0, "target-rank", "KILL"),
    Fault(0, "constraint-replica", "KILL"),
    Fault(0, "target-coordinator", "KILL"),
    Fault(0, "constraint-child", "STOP"),
]


@dataclass(frozen=True)
class Result:
    references: dict[str, Answer]
    outcomes: list[Outcome]
    late_failures: list[str]
    num_answers: int
    held: list[str]


def wait_long(config: Config) -> None:
    """New requests outwait the only target on a busy machine too: each is to have its text."""
    section(config, "router.timeouts").update(queue_wait_s=180.0, failover_s=180.0)


@pytest.fixture(scope="module")
def result() -> Iterator[Result]:
    cases = [*free_cases(NUM_STREAMS), *constrained_cases(NUM_STREAMS)]
    with (
        served(ROOT / "configs" / "demo.yaml", change=wait_long) as service,
        FaultService(service) as watched,
    ):
        load = FaultLoad(watched.base_url, cases)
        references = load.collect_references()
        load.start()
        try:
            outcomes = list(Campaign(watched, load, random.Random(0)).run(FAULTS))
        finally:
            load.stop()
        late = [str(failure) for failure in load.take_failures()]
        held = watched.wait_freed(FREED_LIMIT_S)
        yield Result(references, outcomes, late, load.num_answers, held)


def test_every_request_completes_with_its_text(result: Result) -> None:
    assert {str(o.fault): o.problems for o in result.outcomes if o.problems} == {}
    assert sum(o.num_refused for o in result.outcomes) == 0
    assert result.late_failures == []
    assert result.num_answers > len(FAULTS)


def test_the_faults_struck_where_they_hurt(result: Result) -> None:
    """Or the texts above say nothing: a lost target pauses all, a lost constraint replica some."""
    pauses = {o.fault.kind: (o.pause_free_s, o.pause_constrained_s) for o in result.outcomes}
    for kind in ("target-rank", "target-coordinator"):
        assert min(pauses[kind]) > 1.0, pauses
    assert pauses["constraint-replica"][1] > 1.0, pauses
    assert [o.fault for o in result.outcomes] == FAULTS


def test_a_stopped_child_is_ended_by_its_parent(result: Result) -> None:
    [stopped] = [o for o in result.outcomes if o.fault.signal == "STOP"]
    assert stopped.ended_by == "supervision"


def test_drafts_were_in_use(result: Result) -> None:
    assert all(
        answer.num_draft_tokens > 0
        for name, answer in result.references.items()
        if name in ("free-0", "constrained-0")
    )


def test_everything_is_free_afterwards(result: Result) -> None:
    assert result.held == []
