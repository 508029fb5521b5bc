"""Processes of the served demo die under streams that must not notice: the trial in small.

The whole of it, every kind of process twenty times over, is
`python -m loadtest faults --set rounds=20`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.experiments.trials import FAULTS
from loadtest.frame.experiment import Result
from loadtest.service.served import Config, section
from loadtest.trial.events import Strike
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STRIKES = [
    Strike(way=f"{kind} {name}", kind=kind, signal=name)
    for kind, name in (
        ("target-rank", "KILL"),
        ("constraint-replica", "KILL"),
        ("target-coordinator", "KILL"),
        ("constraint-child", "STOP"),
    )
]


def wait_long(config: Config, terms: Terms) -> None:
    """New requests outwait the only target on a busy machine too: each is to have its text."""
    section(config, "router.timeouts").update(queue_wait_s=180.0, failover_s=180.0)


@pytest.fixture(scope="module")
def found() -> Result:
    trial = replace(FAULTS, place=Place(change=wait_long), events=lambda scene: STRIKES)
    return trial.run(Scene(terms=Terms(**{**FAULTS.terms, "streams": 3})))


def test_every_request_completes_with_its_text_and_everything_is_free_afterwards(
    found: Result,
) -> None:
    assert found.problems == []
    assert sum(sum(row["runs"]["refused"]) for row in found.rows) == 0
    assert found.extra["num_answers"] > len(STRIKES)


def test_the_faults_struck_where_they_hurt(found: Result) -> None:
    """Or the texts above say nothing: a lost target pauses all, a lost constraint replica some."""
    pauses = {
        row["way"]: (row["runs"]["pause_free_s"][0], row["runs"]["pause_constrained_s"][0])
        for row in found.rows
    }
    for kind in ("target-rank", "target-coordinator"):
        assert min(pauses[f"{kind} KILL"]) > 1.0, pauses
    assert pauses["constraint-replica KILL"][1] > 1.0, pauses
    assert list(pauses) == [strike.way for strike in STRIKES]


def test_a_stopped_child_is_ended_by_its_parent(found: Result) -> None:
    stopped = found.extra["events"][-1]
    assert (stopped["event"], stopped["ended_by"]) == ("constraint-child STOP", "supervision")


def test_drafts_were_in_use(found: Result) -> None:
    assert found.extra["drafted"]["free-0"] > 0
    assert found.extra["drafted"]["constrained-0"] > 0
