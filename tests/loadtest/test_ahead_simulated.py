"""Drafts ahead where each model has a device of its own: on virtual time, with real loops."""

from __future__ import annotations

import random

import pytest

from loadtest.frame.runs import MEASURES, Ask, Run
from loadtest.frame.ways import Way
from loadtest.fuzz.failures.model import VOCAB_SIZE
from loadtest.fuzz.failures.timed import Costs, TimedPair, timed_stage

K = 5
PAIR = TimedPair(
    target=Costs(pass_s=0.0183, row_s=3e-5), draft=Costs(pass_s=0.0022, row_s=1e-5), noise=0.3
)


def asks(count: int, temperature: float) -> list[Ask]:
    dice = random.Random(3)
    return [
        Ask(
            prompt_ids=tuple(dice.randrange(1, VOCAB_SIZE) for _ in range(8)),
            max_tokens=40,
            temperature=temperature,
            seed=number,
        )
        for number in range(count)
    ]


def runs(batch: int, temperature: float) -> tuple[Run, Run]:
    """Return the same requests without drafts ahead and with."""
    serial, ahead = Way(k=K), Way(k=K, speculation={"draft_ahead": 9})
    with timed_stage(PAIR) as stage:
        stage.run(asks(2 * batch, temperature), ahead, batch)  # outcomes are learnt
        found = [stage.run(asks(6 * batch, temperature), way, batch) for way in (serial, ahead)]
    assert found[0].contents == found[1].contents
    return found[0], found[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_ahead_are_mostly_there_and_save_most_of_their_time(temperature: float) -> None:
    serial, ahead = runs(1, temperature)
    assert MEASURES["ahead_share"](serial) == 0.0
    assert MEASURES["ahead_share"](ahead) > 0.9
    assert ahead.tokens_per_s > 1.25 * serial.tokens_per_s  # 29.3 ms a round may become 18.9


def test_drafts_ahead_do_not_slow_a_full_batch_down() -> None:
    serial, ahead = runs(16, 1.0)
    assert ahead.tokens_per_s > serial.tokens_per_s
