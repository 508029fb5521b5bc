"""Claims: the ratios that the project promises, with their goals, computed from a result's rows.

Ways were measured by turns, so ratios and differences are taken within a turn, and the median over
turns decides. Intervals are of 95% (`report.ratios`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from loadtest.frame.ways import ADAPTIVE, PLAIN
from loadtest.report.ratios import Estimate, difference_of, rates_of_best, ratio_of

Row = Mapping[str, Any]  # of a record: its cell, its way, and the runs of each measure
CELL = ("stage", "workload", "batch")
ADAPTIVE_TO_BEST, ADAPTIVE_TO_PLAIN = 0.95, 0.97  # goals, everywhere


@dataclass(frozen=True)
class Claim:
    """`value` should be at least or at most `goal`; `interval`: 95%, where turns give one."""

    text: str
    value: float
    relation: Literal["at least", "at most"]
    goal: float
    interval: tuple[float, float] | None = None

    @property
    def is_met(self) -> bool:
        """True if this run shows it."""
        return self.value >= self.goal if self.relation == "at least" else self.value <= self.goal

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        low_high = "" if self.interval is None else " [{:.2f}, {:.2f}]".format(*self.interval)
        return f"{self.text}: {self.value:.2f}{low_high} ({self.relation} {self.goal:g}: {verdict})"

    def record(self) -> dict[str, object]:
        """Return the claim as a dict for the JSON file."""
        return {
            "text": self.text,
            "value": self.value,
            "relation": self.relation,
            "goal": self.goal,
            "is_met": self.is_met,
            **({} if self.interval is None else {"interval": list(self.interval)}),
        }


def at_least(text: str, estimate: Estimate, goal: float) -> Claim:
    """Claim that a figure with an interval is at least `goal`; the figure itself decides."""
    return Claim(text, estimate.value, "at least", goal, (estimate.low, estimate.high))


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A claim for every cell of an experiment that has its ways.

    Attributes:
        way: whose measure it is.
        to: the way that it is compared with; empty: the goal is for the measure itself.
        measure: name of a measure.
        at_least, at_most: the goal; one of them.
        only: values that a cell must have, by `stage`, `workload`, `batch`; a tuple: one of them.
        unless: a goal that a cell must miss for this one to be a claim.
        by: how the two are compared. `ratio to best`: both may be patterns, and the best of those
            that match is picked on one half of the turns and compared on the other.
    """

    way: str
    to: str = ""
    measure: str = "tokens_per_s"
    at_least: float | None = None
    at_most: float | None = None
    only: Mapping[str, Any] = field(default_factory=dict)
    unless: Goal | None = None
    by: Literal["ratio", "difference", "ratio to best"] = "ratio"

    def claims(self, rows: Sequence[Row]) -> Iterator[Claim]:
        """Yield a claim for each cell that has rows of both ways."""
        relation: Literal["at least", "at most"] = "at least" if self.at_most is None else "at most"
        goal = self.at_least if self.at_most is None else self.at_most
        assert goal is not None, f"a claim about {self.way} has no goal"
        for cell, ways in cells(rows).items():
            if not self._is_about(cell, ways):
                continue
            estimate = self._estimate(ways)
            if estimate is not None:
                where = ", ".join([cell[0], cell[1], f"batch {cell[2]}"])
                yield Claim(
                    f"{where}: {self.measure}, {self._compared}",
                    estimate.value,
                    relation,
                    goal,
                    (estimate.low, estimate.high),
                )

    def _is_about(self, cell: tuple[Any, ...], ways: Mapping[str, Row]) -> bool:
        for name, value in self.only.items():
            own = cell[CELL.index(name)]
            if own not in value if isinstance(value, tuple) else own != value:
                return False
        return self.unless is None or not all(
            claim.is_met for claim in self.unless.claims(list(ways.values()))
        )

    @property
    def _compared(self) -> str:
        return f"{self.way} {_WORDS[self.by]} {self.to}" if self.to else self.way

    def _estimate(self, ways: Mapping[str, Row]) -> Estimate | None:
        runs = {
            name: row["runs"][self.measure]
            for name, row in ways.items()
            if self.measure in row["runs"]
        }
        own = {name: one for name, one in runs.items() if fnmatchcase(name, self.way)}
        others = {
            name: one
            for name, one in runs.items()
            if fnmatchcase(name, self.to) and name not in own
        }
        if not own or (self.to and not others):
            return None
        if self.by == "ratio to best":
            above, below = (rates_of_best(lines) for lines in (own, others))
            return None if above is None or below is None else ratio_of(above, below)
        (one,) = own.values()
        if not self.to:
            return ratio_of(one, [1.0] * len(one))
        (other,) = others.values()
        if self.by == "ratio":
            return ratio_of(one, other)
        return difference_of(one, other)


_WORDS = {"ratio": "/", "difference": "-", "ratio to best": "/ the best of"}


def cells(rows: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Group rows by their cell, and in a cell by their way."""
    grouped: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        grouped.setdefault(cell_of(row), {})[row["way"]] = row
    return grouped


def cell_of(row: Row) -> tuple[Any, ...]:
    """Return the cell of a row: its stage, workload and batch."""
    return tuple(row[name] for name in CELL)


def never_wrong(to_best: float = ADAPTIVE_TO_BEST, **fields: Any) -> tuple[Goal, Goal]:
    """Return the claims that adaptive k is near the best fixed k, 0 included, and near plain.

    `fields` are further fields of both goals.
    """
    return (
        Goal(way=ADAPTIVE, to="k=*", at_least=to_best, by="ratio to best", **fields),
        Goal(way=ADAPTIVE, to=PLAIN, at_least=ADAPTIVE_TO_PLAIN, **fields),
    )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the ratios of `never_wrong` over all cells: the median, the worst, those that miss."""
    for goal in never_wrong():
        values = {claim.text: claim.value for claim in goal.claims(rows)}
        if values:
            goals = sorted({goal.at_least or 0.0, 1.0})
            below = [
                f"{sum(v < least for v in values.values())} below {least:g}" for least in goals
            ]
            worst = min(values, key=lambda text: values[text])
            yield (
                f"{goal.way} {_WORDS[goal.by]} {goal.to} over {len(values)} cells: "
                f"median {statistics.median(values.values()):.2f}, "
                f"worst {values[worst]:.2f} ({worst.split(': ')[0]}), {', '.join(below)}"
            )
