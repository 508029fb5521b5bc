"""The workload's own parts: what is asked, and when users come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.client.shapes import Arrival, Ramp, Spike, read_trace
from loadtest.client.workload import NUM_DISTINCT, Workload

KINDS = ("chat", "record", "shared", "bad")


def workload(seed: int = 1) -> Workload:
    return Workload("m", seed, max_tokens=50, record_max_tokens=300, shared_words=100)


# --- what is asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_asks_the_same_things(kind: str) -> None:
    first = [workload().of_kind(kind, number) for number in range(20)]
    assert first == [workload().of_kind(kind, number) for number in range(20)]
    assert first != [workload(seed=2).of_kind(kind, number) for number in range(20)]
    assert len({json.dumps(request.body) for request in first}) > 4


@pytest.mark.parametrize("kind", ["chat", "shared"])
def test_where_nothing_is_repeated_no_question_comes_twice(kind: str) -> None:
    fresh = Workload(
        "m", 1, max_tokens=50, record_max_tokens=300, shared_words=100, num_distinct=None
    )
    bodies = [fresh.of_kind(kind, number).body for number in range(3000)]
    assert len({body["messages"][-1]["content"] for body in bodies}) == 3000
    assert len({body["seed"] for body in bodies}) == 3000
    assert workload().of_kind(kind, 0) == workload().of_kind(kind, NUM_DISTINCT)


def test_shared_prompts_begin_alike_and_are_long() -> None:
    bodies = [workload().shared(number).body for number in range(8)]
    prompts = {body["messages"][0]["content"] for body in bodies}
    assert len(prompts) == 1
    assert len(prompts.pop().split()) == 100


# --- when users come


@pytest.mark.parametrize(
    ("shape", "users"),
    [
        (Ramp(users=10, rise_s=20, hold_s=10), {0: 1, 1: 1, 10: 5, 20: 10, 29: 10, 30: None}),
        (Spike(users=4, factor=3, length_s=30), {0: 4, 9: 4, 10: 12, 19: 12, 20: 4, 30: None}),
    ],
)
def test_a_ramp_rises_and_holds_and_a_spike_is_the_middle_third(
    shape: Ramp | Spike, users: dict[int, int | None]
) -> None:
    assert {time_s: shape.users_at(time_s) for time_s in users} == users


def test_a_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("kind,at_s\nchat,2.5\nbad,0\n")
    assert read_trace(path, KINDS) == [Arrival(0.0, "bad"), Arrival(2.5, "chat")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time,kind\n1,chat\n", "must have the columns at_s,kind"),
        ("at_s,kind\nsoon,chat\n", "line 2: at_s must be a number, got 'soon'"),
        ("at_s,kind\n-1,chat\n", "0 or more"),
        ("at_s,kind\n1,chat\n2,cat\n", "line 3: kind must be one of .* got 'cat'"),
        ("at_s,kind\n", "no arrivals"),
    ],
)
def test_a_wrong_trace_is_refused_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_trace(path, KINDS)
