"""Faults: a round has all of them, a refusal is counted apart, a text that is lost is a problem."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from loadtest.client.streams import Failure, Load
from loadtest.experiments.trials import FAULTS, strikes
from loadtest.service.parts import KINDS
from loadtest.trial.events import SIGNALS, Strike
from loadtest.trial.scene import Scene, Terms, happen
from tests.fakes.scripted_server import answer, scripted_server


def test_a_round_has_every_kind_with_every_signal_in_its_own_order() -> None:
    terms = Terms(**{**FAULTS.terms, "rounds": 3})
    faults = [(one.kind, one.signal) for one in strikes(terms, random.Random(1))]
    wanted = {(kind, name) for kind in KINDS for name in SIGNALS}
    size = len(wanted)
    rounds = [faults[first : first + size] for first in range(0, len(faults), size)]
    assert len(rounds) == 3
    assert all(set(order) == wanted and len(order) == size for order in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    again = [(one.kind, one.signal) for one in strikes(terms, random.Random(1))]
    assert faults == again, "the seed decides"


class StruckService:
    """One process that may be struck, and a service that is whole at once."""

    def __init__(self, victim: psutil.Process) -> None:
        self._victim = victim

    def victims(self, kind: str) -> list[psutil.Process]:
        return {"target-rank": [self._victim]}[kind]

    def missing(self) -> str:
        return ""

    def orphans(self) -> list[psutil.Process]:
        return []


class NotingLoad(Load):
    """Streams of which two are refused and one loses its text while something happens."""

    num_streams, num_answers = 3, 9

    def __init__(self) -> None:
        reasons = [("HTTP 503: gone", 503), ("HTTP 429: full", 429), ("another text", 200)]
        self._failures = [[], [Failure("free-0", 0.0, 1.0, *reason) for reason in reasons]]

    def take_failures(self) -> list[Failure]:
        return self._failures.pop(0)

    def figures(self, from_s: float, to_s: float) -> dict[str, float]:
        return {"pause_free_s": 1.5}

    def waits(self, from_s: float, to_s: float) -> list[tuple[str, float, float]]:
        return [("free-0", 0.0, 3.5)]


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait(10)


def test_what_is_refused_is_no_failure_and_is_counted_apart(sleeper: psutil.Process) -> None:
    order = {"customer": "A", "item": "b", "quantity": 1, "price": 2, "city": "Oslo"}
    event = {
        "choices": [{"delta": {"content": json.dumps({"probe-1": [order]})},
                     "finish_reason": "stop"}],
        "metrics": {"speculative_decoding": {"num_draft_tokens": 3}},
    }  # fmt: skip
    probed = answer(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
    strike = Strike(way="target-rank KILL", kind="target-rank", signal="KILL", pause_s=(0.0, 0.0))
    with scripted_server(probed) as server:
        load = NotingLoad()
        scene = Scene(terms=Terms(), base_url=server.url, loads=[load], running=[load])
        service: Any = StruckService(sleeper)
        scene.watched = service
        problems = happen(scene, strike, allows_refusals=True)
    assert problems == ["free-0, 1.0 s: another text"]
    [row] = scene.result.rows
    assert (row["way"], row["batch"]) == ("target-rank KILL", 3)
    assert row["runs"]["refused"] == [2]
    assert row["runs"]["problems"] == [1]
    assert row["runs"]["pause_free_s"] == [1.5]
    [told] = scene.result.extra["events"]
    assert told["pid"] == sleeper.pid
    assert told["waits"] == [("free-0", 0.0, 3.5)]
