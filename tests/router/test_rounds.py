"""What rounds teach the planner of costs, and which of them teach nothing."""

from __future__ import annotations

import time

from models.protocol.messages import Timing, Verdict
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.planning.round_plan import RoundPlan
from router.rounds import Round, RoundWatch
from router.stats import RoundStats


def verdict() -> Verdict:
    timing = Timing(pass_ms=1.0, num_rows=1, num_sessions=1)
    return Verdict(
        session_id="s", seq=1, part=0, num_accepted=0, token=5, is_last=True, timing=timing
    )


def learnt_pass_ms(replica_after: str) -> float:
    """What is known of a pass after a second round, which goes from "a" to this replica."""
    costs, replica = PassCosts(), ["a"]
    watch = RoundWatch(RoundStats(), costs, FixedPlanner(1, run_on=0), lambda: replica[0])
    asked = Round(plan=RoundPlan(0, 0), planned_at=time.perf_counter())
    watch.note_asked()
    watch.note_verdict(asked, verdict())
    assert costs.pass_ms(1) == 0.0, "it read the prompt"
    watch.note_asked()
    replica[0] = replica_after
    watch.note_verdict(asked, verdict())
    return costs.pass_ms(1)


def test_a_round_that_found_another_replica_says_nothing_of_passes() -> None:
    assert learnt_pass_ms("a") == 1.0
    assert learnt_pass_ms("b") == 0.0
