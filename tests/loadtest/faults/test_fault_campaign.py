from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import cast

import psutil

from loadtest.client.streams import Failure, FaultLoad
from loadtest.faults.campaign import (
    SIGNALS,
    Campaign,
    Fault,
    Outcome,
    as_json,
    plan,
    summarise,
    table,
)
from loadtest.service.parts import EDGE_KINDS, HIDDEN_KINDS, FaultService
from tests.fakes.scripted_server import answer, scripted_server


def outcome(kind: str, pause_s: float, whole_s: float, problems: list[str]) -> Outcome:
    return Outcome(
        fault=Fault(0, kind, "KILL"),
        pid=7,
        pause_free_s=pause_s,
        pause_constrained_s=2 * pause_s,
        victim_gone_s=0.1,
        whole_s=whole_s,
        num_refused=2,
        problems=problems,
    )


def test_a_round_has_every_kind_with_every_signal_in_its_own_order() -> None:
    faults = plan(3, HIDDEN_KINDS, list(SIGNALS), random.Random(1))
    wanted = {(kind, name) for kind in HIDDEN_KINDS for name in SIGNALS}
    rounds = [[(f.kind, f.signal) for f in faults if f.round == number] for number in range(3)]
    assert all(set(order) == wanted and len(order) == len(wanted) for order in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert faults == plan(3, HIDDEN_KINDS, list(SIGNALS), random.Random(1)), "the seed decides"


def test_the_summary_has_median_longest_and_failures() -> None:
    [draft, target] = summarise(
        [
            outcome("target-rank", 1.0, 10.0, []),
            outcome("draft-rank", 0.5, 4.0, []),
            outcome("target-rank", 3.0, 30.0, ["a", "b"]),
            outcome("target-rank", 1.5, 12.0, ["c"]),
        ]
    )
    assert (draft.kind, draft.num_faults, draft.num_problems) == ("draft-rank", 1, 0)
    assert (target.pause_free_median_s, target.pause_free_max_s) == (1.5, 3.0)
    assert (target.pause_constrained_median_s, target.pause_constrained_max_s) == (3.0, 6.0)
    assert (target.whole_median_s, target.whole_max_s) == (12.0, 30.0)
    assert (target.num_problems, target.num_refused) == (3, 6)
    assert "1.5 / 3.0" in table([target])


def test_only_the_edge_may_be_noticed() -> None:
    assert all(outcome(kind, 1.0, 1.0, ["cut"]).is_expected for kind in EDGE_KINDS)
    assert not any(outcome(kind, 1.0, 1.0, ["cut"]).is_expected for kind in HIDDEN_KINDS)


def test_an_outcome_is_one_flat_record() -> None:
    record = as_json(outcome("draft-rank", 0.5, 4.0, ["x"]))
    assert (record["kind"], record["signal"], record["problems"]) == ("draft-rank", "KILL", ["x"])
    assert "fault" not in record


class StruckService:
    """One process that may be struck, and a service that is whole at once."""

    def __init__(self, base_url: str, victim: psutil.Process) -> None:
        self.base_url = base_url
        self._victim = victim

    def parts(self) -> dict[str, list[psutil.Process]]:
        return {"target-rank": [self._victim]}

    def missing(self) -> str:
        return ""

    def orphans(self) -> list[psutil.Process]:
        return []


class NotingLoad:
    """Streams of which two were refused, one lost its text, and none waited."""

    def __init__(self) -> None:
        reasons = [("HTTP 503: gone", 503), ("HTTP 429: full", 429), ("another text", 200)]
        self._failures = [Failure("free-0", 0.0, 1.0, *reason) for reason in reasons]

    def wait_steady(self, limit_s: float) -> bool:
        return True

    def take_failures(self) -> list[Failure]:
        taken, self._failures = self._failures, []
        return taken

    def pauses(self, from_s: float, to_s: float) -> tuple[float, float]:
        return 0.0, 0.0

    def waits(self, from_s: float, to_s: float) -> list[object]:
        return []


def test_what_is_refused_is_no_failure_and_is_counted_apart() -> None:
    order = {"customer": "A", "item": "b", "quantity": 1, "price": 2, "city": "Oslo"}
    event = {
        "choices": [{"delta": {"content": json.dumps({"probe-1": [order]})},
                     "finish_reason": "stop"}],
        "metrics": {"speculative_decoding": {"num_draft_tokens": 3}},
    }  # fmt: skip
    probed = answer(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with scripted_server(probed) as server:
            service = cast(FaultService, StruckService(server.url, psutil.Process(sleeper.pid)))
            campaign = Campaign(service, cast(FaultLoad, NotingLoad()), random.Random(3))
            [outcome] = campaign.run([Fault(0, "target-rank", "KILL")])
    finally:
        sleeper.kill()
        sleeper.wait(10)
    assert outcome.num_refused == 2
    assert outcome.problems == ["free-0, 1.0 s: another text"]
    assert "2 refused; 1 FAILURES" in outcome.line()
