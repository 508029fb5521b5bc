"""A step that hangs is told from one that is long, and nothing is said too early."""

from __future__ import annotations

import math

from deployments.engine.step_times import StepTimes


def test_nothing_is_said_before_enough_steps_are_known() -> None:
    times = StepTimes()
    for _ in range(31):
        times.note(4, 0.1)
    assert times.most_s(4) == math.inf
    times.note(4, 0.1)
    assert times.most_s(4) == 0.5


def test_a_long_prompt_is_not_measured_by_single_tokens() -> None:
    times = StepTimes()
    for _ in range(5000):
        times.note(3, 0.02)
    assert times.most_s(2048) == math.inf, "its kernels may be compiled now"
    for _ in range(32):
        times.note(2000, 6.0)
    for _ in range(5000):
        times.note(3, 0.02)
    assert times.most_s(1500) == 30.0
    assert times.most_s(300) == 30.0, "a size that is not known may take what a larger one does"
    assert times.most_s(3) == 0.1


def test_the_limit_follows_what_steps_take_but_not_one_of_them() -> None:
    times = StepTimes()
    for _ in range(200):
        times.note(8, 0.02)
    times.note(8, 40.0)
    assert times.most_s(8) == 0.1
    for _ in range(200):
        times.note(8, 1.0)
    assert times.most_s(8) == 5.0
