from __future__ import annotations

from dataclasses import replace

import pytest

from router.lookahead.advice import (
    LOW_ACCEPTANCE,
    POOR_SATISFACTION,
    TOO_MUCH_GENERATION,
    advice_of,
)
from router.types import LookaheadSettings, LookaheadStats

SETTINGS = LookaheadSettings(
    method="cdsl", reward="{}", text_of=str, accept_threshold=0.4, reward_threshold=0.3, length=6
)


def stats(is_met: bool = True, **states: int) -> LookaheadStats:
    return LookaheadStats(
        method="cdsl",
        num_target_passes=9,
        num_verifications=9,
        num_draft_steps=9,
        num_rollouts=9,
        num_reward_calls=9,
        states=states,
        score=0.5,
        is_met=is_met,
        is_budget_spent=False,
    )


@pytest.mark.parametrize(
    ("is_met", "states", "signs"),
    [
        (True, {"accepted": 8, "low_acceptance": 1, "low_reward": 1}, []),
        (True, {"accepted": 4, "low_acceptance": 4}, []),
        (True, {"accepted": 4, "low_acceptance": 5}, [LOW_ACCEPTANCE]),
        (False, {"accepted": 1, "low_acceptance": 5}, [LOW_ACCEPTANCE]),
        (True, {"accepted": 4, "low_reward": 5}, [TOO_MUCH_GENERATION]),
        (True, {"accepted": 4, "low_reward": 3, "low_acceptance": 2}, [TOO_MUCH_GENERATION]),
        (True, {"accepted": 4, "no_draft": 5}, [TOO_MUCH_GENERATION]),
        (False, {"accepted": 4, "low_reward": 5}, [TOO_MUCH_GENERATION]),
        (False, {"accepted": 5, "low_reward": 5}, [POOR_SATISFACTION]),
        (True, {"accepted": 5, "low_reward": 5}, []),
        (False, {"accepted": 3}, []),  # too few to tell
        (True, {"low_acceptance": 3}, []),
        (False, {"accepted": 4, "plain": 90}, [POOR_SATISFACTION]),  # no rounds
    ],
)
def test_a_sign_is_told_from_its_share_of_the_rounds_on(
    is_met: bool, states: dict[str, int], signs: list[str]
) -> None:
    assert list(advice_of(SETTINGS, stats(is_met, **states))) == signs


def test_the_text_names_the_setting_and_its_value() -> None:
    low = advice_of(SETTINGS, stats(accepted=1, low_acceptance=7))[LOW_ACCEPTANCE]
    assert low.startswith("in 7 of 8 rounds less than 0.4 of the draft stood: lower accept_thresh")
    assert "length (6)" in low
    many = advice_of(SETTINGS, stats(low_reward=3, low_acceptance=2))[TOO_MUCH_GENERATION]
    assert "5 of 5 rounds, mostly for low_reward: lower reward_threshold (0.3)" in many
    assert many.endswith("; generation plain costs less")
    assert "acceptance" not in many
    paper = advice_of(replace(SETTINGS, acceptance="paper"), stats(low_reward=8))
    assert "(0.3) or set acceptance to gain;" in paper[TOO_MUCH_GENERATION]
    plain = replace(SETTINGS, generation="plain")
    assert "generation plain" not in str(advice_of(plain, stats(low_reward=8)))
    poor = advice_of(SETTINGS, stats(is_met=False, accepted=8))[POOR_SATISFACTION]
    assert "raise reward_threshold (0.3)" in poor


def test_the_targets_own_look_aheads_show_no_sign() -> None:
    assert advice_of(replace(SETTINGS, method="cdlh"), stats(is_met=False, accepted=8)) == {}
