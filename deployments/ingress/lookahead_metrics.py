"""Metrics of look-aheads: their costs, their results, their failures."""

from __future__ import annotations

from deployments.serve.metrics import Metric, counter
from router.types import LookaheadStats

METRICS: tuple[Metric[LookaheadStats], ...] = (
    counter(
        "outrider:lookahead_requests",
        "Requests steered by a reward, by method and whether the text meets its constraint",
        lambda stats: {(stats.method, "yes" if stats.is_met else "no"): 1},
        "method",
        "is_met",
    ),
    counter(
        "outrider:lookahead_states",
        "Steps of look-aheads, by how they ended",
        lambda stats: {(state,): num_visits for state, num_visits in stats.states.items()},
        "state",
    ),
    counter(
        "outrider:lookahead_advice",
        "Requests with look-ahead that failed as a setting may mend, by the sign of it",
        lambda stats: {(sign,): 1 for sign in stats.advice},
        "sign",
    ),
    counter(
        "outrider:lookahead_target_passes",
        "Verifications and single steps of the target for look-aheads, roll-outs included",
        lambda stats: stats.num_target_passes,
    ),
    counter(
        "outrider:lookahead_draft_steps",
        "Tokens drafted for look-aheads",
        lambda stats: stats.num_draft_steps,
    ),
    counter(
        "outrider:lookahead_rollouts",
        "Candidates that the target rolled out",
        lambda stats: stats.num_rollouts,
    ),
    counter(
        "outrider:lookahead_reward_calls",
        "Questions to rewards",
        lambda stats: stats.num_reward_calls,
    ),
    counter(
        "outrider:lookahead_budgets_spent",
        "Requests with look-ahead whose budget ran out: their end was written plainly",
        lambda stats: stats.is_budget_spent,
    ),
)
