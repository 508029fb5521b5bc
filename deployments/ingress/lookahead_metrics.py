"""Metrics of look-aheads: their costs, their results, their failures."""

from __future__ import annotations

from deployments.serve.instruments import Meters
from router.types import LookaheadStats


class LookaheadMetrics:
    """The instruments of finished requests with `lookahead`."""

    def __init__(self, meters: Meters) -> None:
        self._requests = meters.counter(
            "outrider:lookahead_requests",
            "Requests steered by a reward, by method and whether the text meets its constraint",
            ["method", "is_met"],
        )
        self._states = meters.counter(
            "outrider:lookahead_states", "Steps of such requests, by how they ended", ["state"]
        )
        self._advice = meters.counter(
            "outrider:lookahead_advice",
            "Such requests that failed in a way that a setting may change, by its sign",
            ["sign"],
        )
        self._passes = meters.counter(
            "outrider:lookahead_target_passes",
            "Verifications and single steps of the target for such requests, roll-outs included",
        )
        self._draft_steps = meters.counter(
            "outrider:lookahead_draft_steps", "Tokens drafted for such requests"
        )
        self._rollouts = meters.counter(
            "outrider:lookahead_rollouts", "Candidates that the target rolled out"
        )
        self._reward_calls = meters.counter(
            "outrider:lookahead_reward_calls", "Questions to rewards"
        )
        self._spent = meters.counter(
            "outrider:lookahead_budgets_spent", "Such requests whose end was written plainly"
        )

    def add(self, stats: LookaheadStats) -> None:
        """Take in a finished request."""
        self._requests.add(1, method=stats.method, is_met="yes" if stats.is_met else "no")
        for state, num_visits in stats.states.items():
            self._states.add(num_visits, state=state)
        for sign in stats.advice:
            self._advice.add(1, sign=sign)
        self._passes.add(stats.num_target_passes)
        self._draft_steps.add(stats.num_draft_steps)
        self._rollouts.add(stats.num_rollouts)
        self._reward_calls.add(stats.num_reward_calls)
        self._spent.add(int(stats.is_budget_spent))
