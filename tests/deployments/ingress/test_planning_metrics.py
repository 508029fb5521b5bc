"""What the planner counts, as metrics and as a line in the log."""

from __future__ import annotations

import logging

import pytest

from deployments.ingress.planning_metrics import PlanningMetrics, gain_line
from deployments.serve.instruments import Meters
from router.comparing import ReplayCounts
from router.gains import LEAST_ROUNDS, Gain, PlannerStats
from router.ports import TaskClass
from router.stats import DraftReplay
from tests.harness.metric_pages import samples

LABELS = {"model_name": "tiny"}


def measured(
    with_drafts: float, without_drafts: float, num_with: int = 100, num_without: int = 20
) -> Gain:
    return Gain(with_drafts, without_drafts, num_with, num_without)


class Planner:
    """Counters and gains, and the page that shows them."""

    def __init__(self) -> None:
        self.stats = PlannerStats()
        self.gains: dict[TaskClass, Gain] = {}
        self._meters = Meters(LABELS)
        self.replays: dict[str, ReplayCounts] = {}
        self.metrics = PlanningMetrics(self._meters, self.stats, lambda: self.gains, self.replays)

    def page(self) -> dict[str, float]:
        self.metrics.publish()
        return samples(self._meters.text(), LABELS)


@pytest.fixture
def planner() -> Planner:
    return Planner()


def test_counters_follow_the_planners_and_count_nothing_twice(planner: Planner) -> None:
    planner.stats.num_plans = 3
    planner.stats.lengths.update({0: 2, 4: 5})
    planner.stats.planning_ms = 250.0
    planner.stats.num_control_rounds, planner.stats.num_probe_rounds = 4, 1
    planner.stats.predicted_ms, planner.stats.actual_ms = 1500.0, 2000.0
    for _ in range(2):
        page = planner.page()
        assert page["outrider:plans_total"] == 3
        assert page["outrider:planning_seconds_total"] == 0.25
        assert page["outrider:planner_probes_total:control"] == 4
        assert page["outrider:planner_probes_total:probe"] == 1
        assert page["outrider:planned_rounds_total:0"] == 2
        assert page["outrider:planned_rounds_total:4"] == 5
        assert page["outrider:planned_round_seconds_total:predicted"] == 1.5
        assert page["outrider:planned_round_seconds_total:actual"] == 2.0
    planner.stats.lengths[4] += 1
    planner.stats.actual_ms += 500.0
    page = planner.page()
    assert page["outrider:planned_rounds_total:4"] == 6
    assert page["outrider:planned_round_seconds_total:actual"] == 2.5


def test_the_gain_of_each_task_class_is_shown_with_what_it_is_made_of(planner: Planner) -> None:
    planner.gains = {"structured": measured(60.0, 40.0), "creative": measured(30.0, 0.0, 7, 0)}
    page = planner.page()
    assert page["outrider:speculation_gain:structured"] == 1.5
    assert "outrider:speculation_gain:creative" not in page, "nothing to compare with"
    assert page["outrider:task_tokens_per_second:without:structured"] == 40.0
    assert page["outrider:task_tokens_per_second:with:creative"] == 30.0
    assert "outrider:task_tokens_per_second:without:creative" not in page
    planner.gains = {"structured": measured(44.0, 40.0, 130, 22)}
    page = planner.page()
    assert page["outrider:speculation_gain:structured"] == pytest.approx(1.1)
    assert page["outrider:task_rounds_total:with:structured"] == 130
    assert page["outrider:task_rounds_total:without:structured"] == 22


@pytest.mark.parametrize(("num_with", "num_without"), [(1, 222), (222, 1), (9, 9)])
def test_no_gain_is_told_of_few_rounds(planner: Planner, num_with: int, num_without: int) -> None:
    planner.gains = {"free": measured(3.0, 50.0, num_with, num_without)}
    page = planner.page()
    assert "outrider:speculation_gain:free" not in page
    assert page["outrider:task_rounds_total:with:free"] == num_with
    assert gain_line(planner.gains) == ""
    planner.gains = {"free": measured(60.0, 50.0, LEAST_ROUNDS, LEAST_ROUNDS)}
    assert planner.page()["outrider:speculation_gain:free"] == pytest.approx(1.2)


def test_the_line_has_the_figures_of_each_class_that_is_known() -> None:
    gains: dict[TaskClass, Gain] = {
        "structured": measured(62.0, 46.3, 900, 118),
        "free": measured(50.0, 0.0),
        "creative": measured(40.0, 40.4),
    }
    assert gain_line(gains) == (
        "speculation gains 1.34x on structured (62.0 against 46.3 tokens/s, 118 rounds without "
        "drafts), 0.99x on creative (40.0 against 40.4 tokens/s, 20 rounds without drafts)"
    )
    assert gain_line({}) == gain_line({"free": measured(1.0, 0.0)}) == ""


def test_a_line_comes_while_rounds_are_made_and_not_otherwise(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="deployments.ingress.planning_metrics")

    def lines_after(gains: dict[TaskClass, Gain]) -> int:
        planner.gains = gains
        for _ in range(3):
            planner.metrics.log_gain()
        return len(caplog.records)

    assert lines_after({}) == 0
    assert lines_after({"free": measured(60.0, 40.0, 25, 20)}) == 1
    assert lines_after({"free": measured(60.0, 40.0, 26, 20)}) == 2
    assert "1.50x on free" in caplog.messages[-1]


def test_what_draft_models_would_have_drafted_is_counted_by_name(planner: Planner) -> None:
    counts = planner.replays.setdefault("small", ReplayCounts())
    counts.add(DraftReplay((True, True, False, True)))
    planner.page()
    counts.add(DraftReplay((False,)))
    for _ in range(2):
        page = planner.page()
        assert page["outrider:replayed_tokens_total:small:yes"] == 3
        assert page["outrider:replayed_tokens_total:small:no"] == 2
        assert page["outrider:replayed_rounds_total:small:1"] == 4
        assert page["outrider:replayed_rounds_total:small:4"] == 3
