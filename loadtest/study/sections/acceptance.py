"""Measures how many draft tokens are accepted, by draft, task and temperature.

Every round drafts the highest k that is studied, or fewer at a text's end. Its acceptance at each
position also gives the result of every smaller k. Speed is not measured, so load on the machine
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from loadtest.acceptance.theory import analyse
from loadtest.study.engines import Answer, Way
from loadtest.study.world import World

_BATCH = 8
Rounds = list[list[int]]


def measure(world: World, draft: str, task: str) -> dict[str, Any]:
    """Measure one draft on one task, at every temperature."""
    settings = world.settings
    k = settings.k[-1]
    batch = min(_BATCH, max(settings.batch))
    by_temperature = []
    for temperature in settings.temperatures:
        served = world.engines.run(world.asks(task, temperature=temperature), Way(draft, k), batch)
        by_temperature.append({"temperature": temperature, **summary(served.answers, k)})
    return {"k": k, "temperatures": by_temperature}


def summary(answers: Sequence[Answer], k: int) -> dict[str, Any]:
    """Acceptance with its interval, by position, and what a round brought.

    `acceptance` is None where nothing was drafted.
    """
    drafted, accepted = rounds_of(answers)
    num_rounds = sum(answer.stats.num_rounds for answer in answers)
    found: dict[str, Any] = {
        "num_rounds": num_rounds,
        "num_drafted_rounds": sum(map(len, drafted)),
        "num_tokens": sum(len(answer.token_ids) for answer in answers),
        "acceptance": None,
        "hazards": [],
        "tokens_per_round": None,
    }
    if drafted:
        analysis = analyse({k: accepted}, drafted={k: drafted})
        found["acceptance"] = asdict(analysis.acceptance)
        found["hazards"] = analysis.hazards
        found["tokens_per_round"] = asdict(analysis.lines[0].measured)
    return found


def rounds_of(answers: Sequence[Answer]) -> tuple[Rounds, Rounds]:
    """Drafted and accepted tokens of each round that had a draft, of answers with such rounds."""
    drafted, accepted = [], []
    for answer in answers:
        rounds = [
            (of, right)
            for of, right in zip(
                answer.stats.per_step_drafted, answer.stats.per_step_accepted, strict=True
            )
            if of > 0
        ]
        if rounds:
            drafted.append([of for of, _ in rounds])
            accepted.append([right for _, right in rounds])
    return drafted, accepted
