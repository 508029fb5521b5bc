import pytest

from loadtest.overhead import RouterCost, claims_of


def cost(cpu_ms_an_event: float) -> RouterCost:
    return RouterCost(
        cpu_ms_an_event=cpu_ms_an_event,
        cpu_share=0.5,
        num_events=10,
        num_tokens=20,
        tokens_per_s=100.0,
    )


def test_claims_are_of_the_median_run_and_taken_within_a_turn() -> None:
    costs = {"adaptive": [cost(0.2), cost(0.9), cost(0.25)], "k=0": [cost(0.4)] * 3}
    first_ms = {"http": [12.0, 40.0, 9.0], "pass": [3.0, 35.0, 2.0]}
    claims = claims_of(costs, first_ms, 32)
    assert [claim.value for claim in claims] == pytest.approx([0.25, 0.4, 7.0])
    assert [claim.is_met for claim in claims] == [True, False, True]
