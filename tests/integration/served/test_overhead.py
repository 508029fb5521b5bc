"""The experiments on what serving costs, on the served demo."""

from __future__ import annotations

import pytest

from loadtest.experiments.overhead import first_lines, router_process, run_streams
from loadtest.frame.ways import Way
from loadtest.report.prompts import demo_prompts
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.harness.local import DEMO
from tests.harness.served_demo import ServedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_the_routers_time_is_counted_by_event(demo: ServedDemo) -> None:
    prompts = demo_prompts(2, kind="story")
    before = router_process(demo).cpu_times()
    runs = [run_streams(demo, prompts, 12, way) for way in (Way(k=0), Way())]
    after = router_process(demo).cpu_times()
    spent_ms = 1e3 * (after.user + after.system - before.user - before.system)
    # An event holds at least a token; a stream's end and its usage have one each.
    assert all(6 <= run["num_events"] <= 28 for run in runs)
    counted_ms = sum(run["cpu_ms_an_event"] * run["num_events"] for run in runs)
    assert 0.0 < counted_ms <= spent_ms + 20.0  # the clock ticks every 10 ms


def test_each_prompt_has_its_first_token_and_its_pass_timed(demo: ServedDemo) -> None:
    target = ModelRunner(EngineConfig(model_path=str(DEMO / "target"), max_model_len=512))
    lines = first_lines(demo, target, demo_prompts(2, kind="story"))
    assert list(lines) == ["http", "pass"]
    assert all(turn()["first_ms"] > 0.0 for _ in range(3) for turn in lines.values())
