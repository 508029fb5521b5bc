"""Counts how often texts differ: by comparison, task and temperature, with intervals.

A comparison sets two ways side by side. They are A and B, a server and itself again, or a server
with and without crowd. Each question counts once in it. The difference of a server from itself is
the floor. Only a higher difference shows that the other server is another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from loadtest.client.prompt_file import Prompt
from loadtest.report.ratios import wilson
from loadtest.same.plan import Plan, Question, SideName, Way
from loadtest.same.readings import Readings
from loadtest.same.sides import Reading

Kind = Literal["between", "again", "crowd", "delivery"]
Fate = Literal["same", "differs", "unsteady", "unanswered"]

_DOUBT = 0.05


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two ways to ask whose texts are compared, question by question."""

    kind: Kind
    first: Way
    second: Way

    @property
    def name(self) -> str:
        """The compared ways, in words."""
        first, second = self.first, self.second
        crowd = f"{first.concurrency} at a time"
        return {
            "between": f"{first.side} against {second.side}, {crowd}, {first.delivery}",
            "again": f"{first.side} against itself, {crowd}, {first.delivery}",
            "crowd": f"{first.side}: {crowd} against {second.concurrency}, {first.delivery}",
            "delivery": f"{first.side}: {first.delivery} against {second.delivery}, {crowd}",
        }[self.kind]

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the two texts."""
        if self.kind == "between":
            return self.first.side, self.second.side
        return "first", "second"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The number of questions with two texts out of all compared, with Wilson's interval at 95%.

    An interval of no questions is all of 0 to 1.
    """

    num_differing: int
    num_compared: int

    @property
    def interval(self) -> tuple[float, float]:
        """Lowest and highest share that these counts leave likely."""
        found = wilson(self.num_differing, self.num_compared)
        return found.low, found.high


def comparisons(plan: Plan) -> list[Comparison]:
    """Return all comparisons of a plan, A against B first."""
    runs = range(1, plan.num_runs + 1)
    crowds, deliveries, sides = plan.concurrencies, plan.deliveries, plan.sides

    def way(side: SideName, crowd: int, delivery: int, run: int) -> Way:
        return Way(side=side, concurrency=crowd, delivery=deliveries[delivery], run=run)

    places = list(product(crowds, range(len(deliveries))))
    found = [
        Comparison(kind="between", first=way(sides[0], *place, 1), second=way(sides[1], *place, 1))
        for place in places
        if len(sides) > 1
    ]
    for side in sides:
        found += [
            Comparison(kind="again", first=way(side, *place, 1), second=way(side, *place, run))
            for place, run in product(places, runs[1:])
        ]
        found += [
            Comparison(
                kind="crowd", first=way(side, crowds[0], 0, 1), second=way(side, crowd, 0, 1)
            )
            for crowd in crowds[1:]
        ]
        found += [
            Comparison(
                kind="delivery",
                first=way(side, crowds[0], 0, 1),
                second=way(side, crowds[0], number, 1),
            )
            for number in range(1, len(deliveries))
        ]
    return found


def differs(comparison: Comparison, of: Mapping[Way, Reading]) -> bool | None:
    """Return whether a question's two texts differ; None if one of them did not come."""
    first, second = of[comparison.first], of[comparison.second]
    if first.problem or second.problem:
        return None
    return first.essence != second.essence


def share_of(
    readings: Readings,
    comparison: Comparison,
    wanted: Callable[[Question], bool] = lambda question: True,
) -> Share:
    """Count a comparison over the wanted questions."""
    found = [differs(comparison, ways) for question, ways in readings.items() if wanted(question)]
    return Share(num_differing=found.count(True), num_compared=len(found) - found.count(None))


def shares_by_task(
    readings: Readings, comparison: Comparison, prompts: Sequence[Prompt]
) -> dict[tuple[str, float], Share]:
    """Count a comparison for each task at each temperature."""
    cells = dict.fromkeys((prompts[one.prompt_at].task, one.temperature) for one in readings)

    def is_in(cell: tuple[str, float]) -> Callable[[Question], bool]:
        return lambda one: (prompts[one.prompt_at].task, one.temperature) == cell

    return {cell: share_of(readings, comparison, is_in(cell)) for cell in cells}


def fate_of(readings: Iterable[tuple[Way, Reading]]) -> Fate:
    """Classify a question by its texts.

    Returns:
        same: there is one text. differs: each side has one, always, and they are two. unsteady: a
        side has several itself. unanswered: an answer is missing, and nothing else was found.
    """
    texts: dict[SideName, set[tuple[str, str]]] = {}
    is_whole = True
    for way, reading in readings:
        if reading.problem:
            is_whole = False
        else:
            texts.setdefault(way.side, set()).add(reading.essence)
    if any(len(of_side) > 1 for of_side in texts.values()):
        return "unsteady"
    if len(set().union(*texts.values())) > 1:
        return "differs"
    return "same" if is_whole else "unanswered"


def excess_chance(num_between_only: int, num_floor_only: int) -> float:
    """Return how likely chance alone lets two servers differ so much more than one from itself.

    Args:
        num_between_only: questions in which A and B differ and the server keeps to itself.
        num_floor_only: questions in which it is the other way round.

    Returns:
        The exact one-sided chance that of all of these as many are of the first sort, if each
        were as likely of either (McNemar, Psychometrika 12 (1947) 153).
    """
    num = num_between_only + num_floor_only
    ways = sum(math.comb(num, one) for one in range(num_between_only, num + 1))
    return ways / 2**num


def rises_above(readings: Readings, between: Comparison, floors: Sequence[Comparison]) -> bool:
    """Return whether A and B differ more often than every one of these floors, beyond chance."""
    pairs = []
    for floor in floors:
        found = [(differs(between, ways), differs(floor, ways)) for ways in readings.values()]
        pairs.append((found.count((True, False)), found.count((False, True))))
    return bool(pairs) and all(excess_chance(*pair) < _DOUBT for pair in pairs)
