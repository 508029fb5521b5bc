"""Processes of the served demo die under streams that must not notice: the trial in small.

The whole of it, every kind of process twenty times over, is
`python -m loadtest faults --set rounds=20`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.experiments.trials import FAULTS
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


class Streams:
    """What the trial found, and the answers that every later one had to be."""

    def __init__(self) -> None:
        trial = replace(
            FAULTS,
            place=Place(change=wait_long),
            events=lambda scene: STRIKES,
        )
        self.scene = Scene(terms=Terms(**{**FAULTS.terms, "streams": 3}))
        self.found = trial.run(self.scene)
        self.runs: dict[str, Any] = {row["way"]: row["runs"] for row in self.found.rows}
        self.events = {one["event"]: one for one in self.found.extra["events"]}


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams()


def test_every_request_completes_with_its_text_and_everything_is_free_afterwards(
    streams: Streams,
) -> None:
    assert streams.found.problems == []
    assert sum(sum(runs["refused"]) for runs in streams.runs.values()) == 0
    assert streams.found.extra["num_answers"] > len(STRIKES)


def test_the_faults_struck_where_they_hurt(streams: Streams) -> None:
    """Or the texts above say nothing: a lost target pauses all, a lost constraint replica some."""
    pauses = {
        way: (runs["pause_free_s"][0], runs["pause_constrained_s"][0])
        for way, runs in streams.runs.items()
    }
    for kind in ("target-rank", "target-coordinator"):
        assert min(pauses[f"{kind} KILL"]) > 1.0, pauses
    assert pauses["constraint-replica KILL"][1] > 1.0, pauses
    assert list(pauses) == [strike.way for strike in STRIKES]


def test_a_stopped_child_is_ended_by_its_parent(streams: Streams) -> None:
    assert streams.events["constraint-child STOP"]["ended_by"] == "supervision"


def test_drafts_were_in_use(streams: Streams) -> None:
    drafted = streams.found.extra["drafted"]
    assert drafted["free-0"] > 0
    assert drafted["constrained-0"] > 0
