"""The common part of all trainable drafters: steps, their loss, their acceptance.

A student looks at a lesson. It has states that give a row of logits for each token of its longest
draft. One that drafts by itself gives one step; heads give one for each further token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from models.distill.losses import Acceptance, acceptance_of, token_losses
from models.distill.teacher import Lesson, fast_products, logits_of

_MAX_JUDGED_PLACES = 2048  # places of one lesson: the coupling's formula is quadratic in likely ids


class Step(NamedTuple):
    """Guesses at one distance.

    Attributes:
        first: places before it have none.
        states: [B, L, F] those of place p give the logits of the token behind it.
        output: [N, F] what gives them.
    """

    first: int
    states: Tensor
    output: Tensor


class Student(Protocol):
    """A drafter that trains.

    Attributes:
        decay: weight of a step's loss beside that of the step before it.
    """

    decay: float

    @property
    def module(self) -> nn.Module:
        """The trained module, in float32."""
        ...

    def steps(self, lesson: Lesson) -> Iterator[Step]:
        """Yield its guesses along a lesson, the nearest first."""
        ...

    def save(self, folder: Path) -> None:
        """Write what serves."""
        ...


def loss_of(student: Student, lesson: Lesson, kind: str) -> Tensor:
    """Return the weighted mean of all steps' losses; see `losses.LOSSES`."""
    total, weight, sum_of_weights = torch.zeros(()), 1.0, 0.0
    with fast_products():
        for step in student.steps(lesson):
            places, numbers = _places_of(step, lesson)
            if not len(numbers):  # nothing is learnt so late
                continue
            logits = logits_of(step.states[:, :-1][places], step.output)
            losses = token_losses(logits, lesson.log_probs[numbers], lesson.columns[numbers], kind)
            shares = lesson.weights[places]
            total = total + weight * (losses * shares).sum() / shares.sum()
            sum_of_weights += weight
            weight *= student.decay
    return total / max(sum_of_weights, 1.0)


@torch.no_grad()
def judge(student: Student, lesson: Lesson) -> list[Acceptance]:
    """Return for each step how often its token would be the target's, at places of full weight.

    Steps are given the text's tokens: those before a step count as right.
    """
    found = []
    with fast_products():
        steps = list(student.steps(lesson))
    for step in steps:
        places, numbers = _places_of(step, lesson)
        is_whole = lesson.weights[places] == 1.0
        states = step.states[:, :-1][places][is_whole][:_MAX_JUDGED_PLACES]
        numbers = numbers[is_whole][:_MAX_JUDGED_PLACES]
        logits = logits_of(states.float(), step.output.float())
        found.append(acceptance_of(logits, lesson.log_probs[numbers]))
    return found


def _places_of(step: Step, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return the places at which a step's guesses count, [B, L - 1], and their lesson rows, [K]."""
    places = lesson.numbers >= 0
    places[:, : step.first] = False
    return places, lesson.numbers[places]
