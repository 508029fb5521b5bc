"""The bench of what serving costs, on the served demo."""

from __future__ import annotations

import pytest

from loadtest.overhead import first_token_ms, router_process, run_streams
from loadtest.report.prompts import demo_prompts
from tests.harness.local import DEMO
from tests.harness.served_demo import ServedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_the_routers_time_is_counted_by_event(demo: ServedDemo) -> None:
    prompts = demo_prompts(2, kind="story")
    before = router_process(demo).cpu_times()
    plain = run_streams(demo, prompts, 12, "k=0")
    drafted = run_streams(demo, prompts, 12, "adaptive")
    after = router_process(demo).cpu_times()
    spent_ms = 1e3 * (after.user + after.system - before.user - before.system)
    assert plain.num_tokens == drafted.num_tokens == 24
    # An event holds at least a token; a stream's end and its usage have one each.
    assert 6 <= plain.num_events <= 28
    assert 6 <= drafted.num_events <= 28
    counted_ms = sum(run.cpu_ms_an_event * run.num_events for run in (plain, drafted))
    assert 0.0 < counted_ms <= spent_ms + 20.0  # the clock ticks every 10 ms


def test_each_prompt_has_its_first_token_and_its_pass_timed(demo: ServedDemo) -> None:
    found = first_token_ms(demo, DEMO, demo_prompts(2, kind="story"))
    assert len(found["http"]) == len(found["pass"]) == 2
    assert all(elapsed_ms > 0.0 for elapsed_ms in (*found["http"], *found["pass"]))
