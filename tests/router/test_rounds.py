"""What rounds teach the planner of costs, and which of them teach nothing."""

from __future__ import annotations

import time

from models.protocol.messages import Timing, Verdict
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.planning.round_plan import RoundPlan
from router.rounds import Round, RoundWatch
from router.stats import RoundStats

WAIT_S = 0.05


def verdict() -> Verdict:
    timing = Timing(pass_ms=1.0, num_rows=1, num_sessions=1)
    return Verdict(
        session_id="s", seq=1, part=0, num_accepted=0, token=5, is_last=True, timing=timing
    )


def learnt_wait_ms(replica_after: str) -> float:
    """What a second round teaches, which waits for `WAIT_S` and goes from "a" to this replica."""
    costs, replica = PassCosts(), ["a"]
    watch = RoundWatch(RoundStats(), costs, FixedPlanner(1, run_on=0), lambda: replica[0])
    asked = Round(plan=RoundPlan(0, 0), planned_at=time.perf_counter())
    watch.note_asked()
    watch.note_verdict(asked, verdict())
    watch.note_asked()
    time.sleep(WAIT_S)
    replica[0] = replica_after
    watch.note_verdict(asked, verdict())
    return costs.plain_wait_ms


def test_a_round_that_found_another_replica_says_nothing_of_waits() -> None:
    assert learnt_wait_ms("a") > 0.9e3 * WAIT_S
    assert learnt_wait_ms("b") == 0.0
