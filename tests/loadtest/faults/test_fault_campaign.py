import random

from loadtest.faults.campaign import SIGNALS, Fault, Outcome, as_json, plan, summarise, table
from loadtest.service.parts import EDGE_KINDS, HIDDEN_KINDS


def outcome(kind: str, pause_s: float, whole_s: float, problems: list[str]) -> Outcome:
    return Outcome(
        fault=Fault(0, kind, "KILL"),
        pid=7,
        pause_free_s=pause_s,
        pause_constrained_s=2 * pause_s,
        victim_gone_s=0.1,
        whole_s=whole_s,
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
    assert target.num_problems == 3
    assert "1.5 / 3.0" in table([target])


def test_only_the_edge_may_be_noticed() -> None:
    assert all(outcome(kind, 1.0, 1.0, ["cut"]).is_expected for kind in EDGE_KINDS)
    assert not any(outcome(kind, 1.0, 1.0, ["cut"]).is_expected for kind in HIDDEN_KINDS)


def test_an_outcome_is_one_flat_record() -> None:
    record = as_json(outcome("draft-rank", 0.5, 4.0, ["x"]))
    assert (record["kind"], record["signal"], record["problems"]) == ("draft-rank", "KILL", ["x"])
    assert "fault" not in record
