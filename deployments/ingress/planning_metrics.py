"""Shows a router's planner as metrics and as a line in the log: k, round times, the gain.

The gain is measured and not computed. The planner makes a small share of rounds without drafts, as
a control. It sums tokens and time of both sorts by task class. Its gain is 1.3 if a session gets
1.3 times the tokens per second that it gets without drafts. Both are beside the same other sessions
on the same machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deployments.serve.instruments import Meters
from deployments.serve.metrics import Metric, Table, counter, gauge
from router.comparing import ReplayCounts
from router.gains import Gain, PlannerStats
from router.ports import TaskClass

logger = logging.getLogger(__name__)

Gains = Callable[[], Mapping[TaskClass, Gain]]


@dataclass(frozen=True, slots=True)
class _Planner:
    """One look at a planner."""

    stats: PlannerStats
    gains: Mapping[TaskClass, Gain]
    replays: Mapping[str, ReplayCounts]


METRICS: tuple[Metric[_Planner], ...] = (
    counter(
        "outrider:replayed_tokens",
        "Tokens of answers that draft models were asked about, by whether they said them",
        lambda now: {
            (draft, said): number
            for draft, counts in now.replays.items()
            for said, number in counts.by_said().items()
        },
        "draft",
        "said",
    ),
    counter(
        "outrider:replayed_rounds",
        "Rounds that the replayed tokens would have taken, were so many drafted in each",
        lambda now: {
            (draft, str(length)): num_rounds
            for draft, counts in now.replays.items()
            for length, num_rounds in counts.num_rounds.items()
        },
        "draft",
        "num_draft_tokens",
    ),
    counter(
        "outrider:plans",
        "Plans of draft lengths that were made",
        lambda now: now.stats.num_plans,
    ),
    counter(
        "outrider:planning_seconds",
        "Time spent on plans of draft lengths",
        lambda now: now.stats.planning_ms / 1e3,
    ),
    counter(
        "outrider:planner_probes",
        "Rounds that were made to be measured (control: all without a draft where drafting pays, "
        "probe: one with a draft where it does not)",
        lambda now: {
            ("control",): now.stats.num_control_rounds,
            ("probe",): now.stats.num_probe_rounds,
        },
        "kind",
    ),
    counter(
        "outrider:planned_rounds",
        "Rounds by the draft length that was chosen for them; 0: without a draft",
        lambda now: {(str(length),): number for length, number in [*now.stats.lengths.items()]},
        "num_draft_tokens",
    ),
    counter(
        "outrider:planned_round_seconds",
        "Time of rounds as the plan predicted it and as it was, with drafts and without",
        lambda now: {
            ("predicted",): now.stats.predicted_ms / 1e3,
            ("actual",): now.stats.actual_ms / 1e3,
        },
        "time",
    ),
    counter(
        "outrider:task_rounds",
        "Rounds of adaptive requests by task class, with drafts and without",
        lambda now: {
            key: num_rounds for key, (_, num_rounds) in _by_task_and_drafts(now.gains).items()
        },
        "task",
        "drafts",
    ),
    gauge(
        "outrider:task_tokens_per_second",
        "Tokens per second of a session, by task class, with drafts and without",
        lambda now: {
            key: tokens_per_s
            for key, (tokens_per_s, num_rounds) in _by_task_and_drafts(now.gains).items()
            if num_rounds
        },
        "task",
        "drafts",
    ),
    gauge(
        "outrider:speculation_gain",
        "Tokens per second of a session with drafts over those without, by task class",
        lambda now: {
            (task,): gain.ratio for task, gain in now.gains.items() if gain.ratio is not None
        },
        "task",
    ),
)


def _by_task_and_drafts(
    gains: Mapping[TaskClass, Gain],
) -> dict[tuple[str, ...], tuple[float, int]]:
    """Tokens/s and number of rounds by task class and "with" or "without" drafts."""
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for task, gain in gains.items():
        found[task, "with"] = gain.with_drafts, gain.num_rounds_with
        found[task, "without"] = gain.without_drafts, gain.num_rounds_without
    return found


class PlanningMetrics:
    """The instruments of one router's planner.

    Args:
        meters: makes them.
        stats: the planner's counters, which go on counting.
        gains: what drafting brings now, by task class; without a class that had no round.
        replays: what draft models would have drafted along answers, by their names.
    """

    def __init__(
        self,
        meters: Meters,
        stats: PlannerStats,
        gains: Gains,
        replays: Mapping[str, ReplayCounts],
    ) -> None:
        self._stats, self._gains, self._replays = stats, gains, replays
        self._table = Table(meters, METRICS)
        self._num_logged = 0  # rounds, when the last line was written

    def publish(self) -> None:
        """Write all instruments as the planner stands now. Idempotent."""
        self._table.follow(_Planner(self._stats, self._gains(), self._replays))

    def log_gain(self) -> None:
        """Log what drafting gains where rounds were made since the last line and it is known."""
        gains = self._gains()
        num_rounds = sum(one.num_rounds_with + one.num_rounds_without for one in gains.values())
        line = gain_line(gains)
        if line and num_rounds > self._num_logged:
            self._num_logged = num_rounds
            logger.info(line)


def gain_line(gains: Mapping[TaskClass, Gain]) -> str:
    """Return the line of the log; empty where no gain is known."""
    parts = [
        f"{gain.ratio:.2f}x on {task} ({gain.with_drafts:.1f} against {gain.without_drafts:.1f} "
        f"tokens/s, {gain.num_rounds_without} rounds without drafts)"
        for task, gain in gains.items()
        if gain.ratio is not None
    ]
    return f"speculation gains {', '.join(parts)}" if parts else ""
