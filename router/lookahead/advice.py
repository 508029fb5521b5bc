"""Finds how a session of speculative look-aheads failed, and which setting to change.

The signs are those that the paper of CDSL (2412.10418) leaves open to be noticed. A session of
CDLH has none: it generates with the target by design.
"""

from __future__ import annotations

from router.types import LookaheadSettings, LookaheadStats

LOW_ACCEPTANCE = "low_acceptance"  # most drafts are another text than the target's
POOR_SATISFACTION = "poor_satisfaction"  # the constraint is missed although drafts were kept
TOO_MUCH_GENERATION = "too_much_generation"  # most rounds end with the target alone, else

_FEW_ROUNDS = 4  # fewer say nothing
_MOST = 0.5  # share of the rounds


def advice_of(settings: LookaheadSettings, stats: LookaheadStats) -> dict[str, str]:
    """Return a text for each sign that a session shows, which names the fields to change.

    - `low_acceptance`: in more than half of the rounds less than `accept_threshold` of a draft
      stood.
    - `too_much_generation`: the target generated in more than half of the rounds, for that and for
      other reasons.
    - `poor_satisfaction`: the constraint is not met, and at least half of the rounds kept their
      draft.
    """
    visits = {state: stats.states.get(state, 0) for state in ("accepted", *_CAUSES)}
    num_rounds = sum(visits.values())
    if settings.method != "cdsl" or num_rounds < _FEW_ROUNDS:
        return {}
    found = {}
    num_generated = num_rounds - visits["accepted"]
    if visits["low_acceptance"] > _MOST * num_rounds:
        rounds = f"{visits['low_acceptance']} of {num_rounds} rounds"
        found[LOW_ACCEPTANCE] = (
            f"in {rounds} less than {settings.accept_threshold:g} of the draft stood: lower "
            f"accept_threshold or length ({settings.length}), or draft with a model closer to the "
            "target (speculation.drafter)"
        )
    elif num_generated > _MOST * num_rounds:
        cause = max(_CAUSES, key=lambda state: visits[state])
        remedy = _CAUSES[cause].format(
            accept=settings.accept_threshold, reward=settings.reward_threshold
        )
        if cause == "low_reward" and settings.acceptance == "paper":
            remedy += " or set acceptance to gain"
        cheaper = "" if settings.generation == "plain" else "; generation plain costs less"
        found[TOO_MUCH_GENERATION] = (
            f"the target generated in {num_generated} of {num_rounds} rounds, mostly for "
            f"{cause}: {remedy}{cheaper}"
        )
    if not stats.is_met and visits["accepted"] >= _MOST * num_rounds:
        found[POOR_SATISFACTION] = (
            f"the constraint is missed and {visits['accepted']} of {num_rounds} drafts were kept: "
            f"raise reward_threshold ({settings.reward_threshold:g}), so that more of them are "
            f"judged wanting, or reward_weight ({settings.reward_weight:g})"
        )
    return found


_CAUSES = {  # states in which the target generates, and what helps
    "low_acceptance": "lower accept_threshold ({accept:g})",
    "low_reward": "lower reward_threshold ({reward:g})",
    "no_draft": "the draft model was away, which no field changes",
}
