"""Shows a router's planner as metrics and as a line in the log: k, round times, the gain.

The gain is measured and not computed. The planner makes a small share of rounds without drafts, as
a control. It sums tokens and time of both sorts by task class. A gain of 1.3 means that a session
of that class gets 1.3 times the tokens per second that it gets without drafts. Both are beside the
same other sessions on the same machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from deployments.serve import instruments
from router.comparing.comparison import ReplayCounts
from router.planning.measured import Gain, PlannerStats
from router.ports import TaskClass

logger = logging.getLogger(__name__)

_PUBLISH_PERIOD_S = 1.0
_LINE_PERIOD_S = 60.0


Gains = Callable[[], Mapping[TaskClass, Gain]]


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
        meters: instruments.Meters,
        stats: PlannerStats,
        gains: Gains,
        replays: Mapping[str, ReplayCounts],
    ) -> None:
        self._stats, self._gains, self._replays = stats, gains, replays
        self._replayed = meters.counter(
            "outrider:replayed_tokens",
            "Tokens of answers that draft models were asked about, and of these said by the model",
            ["draft", "said"],
        )
        self._replayed_rounds = meters.counter(
            "outrider:replayed_rounds",
            "Rounds that these tokens would have taken, were so many drafted in each",
            ["draft", "num_draft_tokens"],
        )
        self._num_plans = meters.counter("outrider:plans", "Plans of draft lengths that were made")
        self._planning_s = meters.counter("outrider:planning_seconds", "Time spent on these plans")
        self._probes = meters.counter(
            "outrider:planner_probes",
            "Rounds (control: without a draft, trial: with one) and drafts beside plain steps "
            "(shadow) that were made to be measured",
            ["kind"],
        )
        self._rounds = meters.counter(
            "outrider:planned_rounds",
            "Rounds by the draft length that was chosen for them; 0: without a draft",
            ["num_draft_tokens"],
        )
        self._round_s = meters.counter(
            "outrider:planned_round_seconds",
            "Time of rounds with a draft, as predicted and as it was",
            ["time"],
        )
        self._task_rounds = meters.counter(
            "outrider:task_rounds",
            "Rounds of adaptive requests by task class, with drafts and without",
            ["task", "drafts"],
        )
        self._task_rates = meters.gauge(
            "outrider:task_tokens_per_second",
            "Tokens per second of a session, by task class, with drafts and without",
            ["task", "drafts"],
        )
        self._gain = meters.gauge(
            "outrider:speculation_gain",
            "Tokens per second of a session with drafts over those without, by task class",
            ["task"],
        )
        self._counted: Counter[tuple[str, ...]] = Counter()
        self._sums_ms: dict[str, float] = {}
        self._num_logged = 0  # rounds, when the last line was written

    def publish(self) -> None:
        """Write all instruments as the planner stands now. Idempotent."""
        stats = self._stats
        self._num_plans.add(self._grown(("plans",), stats.num_plans))
        for length, num_rounds in dict(stats.lengths).items():
            grown = self._grown(("length", str(length)), num_rounds)
            self._rounds.add(grown, num_draft_tokens=str(length))
        for kind, num_made in (
            ("control", stats.num_control_rounds),
            ("trial", stats.num_trial_rounds),
            ("shadow", stats.num_shadow_drafts),
        ):
            self._probes.add(self._grown(("probe", kind), num_made), kind=kind)
        self._planning_s.add(self._grown_s("planning", stats.planning_ms))
        for name, sum_ms in (("predicted", stats.predicted_ms), ("actual", stats.actual_ms)):
            self._round_s.add(self._grown_s(name, sum_ms), time=name)
        for task, gain in self._gains().items():
            self._publish_gain(task, gain)
        for draft, counts in self._replays.items():
            self._publish_replays(draft, counts)

    def _publish_replays(self, draft: str, counts: ReplayCounts) -> None:
        missed = counts.num_tokens - counts.num_matched
        for said, total in (("yes", counts.num_matched), ("no", missed)):
            grown = self._grown(("replayed", draft, said), total)
            self._replayed.add(grown, draft=draft, said=said)
        for length, total in counts.num_rounds.items():
            grown = self._grown(("replayed rounds", draft, str(length)), total)
            self._replayed_rounds.add(grown, draft=draft, num_draft_tokens=str(length))

    async def publish_forever(
        self, period_s: float = _PUBLISH_PERIOD_S, line_period_s: float = _LINE_PERIOD_S
    ) -> None:
        """Publish every `period_s` seconds, and log every `line_period_s`. Endless."""
        logged_at_s = time.monotonic()
        while True:
            await asyncio.sleep(period_s)
            self.publish()
            if time.monotonic() - logged_at_s >= line_period_s:
                logged_at_s = time.monotonic()
                self.log_gain()

    def log_gain(self) -> None:
        """Log what drafting gains where rounds were made since the last line and it is known."""
        gains = self._gains()
        num_rounds = sum(one.num_rounds_with + one.num_rounds_without for one in gains.values())
        line = gain_line(gains)
        if line and num_rounds > self._num_logged:
            self._num_logged = num_rounds
            logger.info(line)

    def _publish_gain(self, task: str, gain: Gain) -> None:
        sides = (
            ("with", gain.with_drafts, gain.num_rounds_with),
            ("without", gain.without_drafts, gain.num_rounds_without),
        )
        for drafts, tokens_per_s, num_rounds in sides:
            grown = self._grown(("task", task, drafts), num_rounds)
            self._task_rounds.add(grown, task=task, drafts=drafts)
            if num_rounds:
                self._task_rates.set(tokens_per_s, task=task, drafts=drafts)
        if gain.ratio is not None:
            self._gain.set(gain.ratio, task=task)

    def _grown_s(self, name: str, sum_ms: float) -> float:
        """Seconds by which a sum of milliseconds has grown since it was last asked for."""
        grown_ms = sum_ms - self._sums_ms.get(name, 0.0)
        self._sums_ms[name] = sum_ms
        return max(0.0, grown_ms) / 1e3

    def _grown(self, key: tuple[str, ...], total: int) -> int:
        """Return the growth of a total since the last call; 0 if it has fallen."""
        grown = total - self._counted[key]
        self._counted[key] = total
        return max(0, grown)


def gain_line(gains: Mapping[TaskClass, Gain]) -> str:
    """Return the line of the log; empty where no gain is known."""
    parts = [
        f"{gain.ratio:.2f}x on {task} ({gain.with_drafts:.1f} against {gain.without_drafts:.1f} "
        f"tokens/s, {gain.num_rounds_without} rounds without drafts)"
        for task, gain in gains.items()
        if gain.ratio is not None
    ]
    return f"speculation gains {', '.join(parts)}" if parts else ""
