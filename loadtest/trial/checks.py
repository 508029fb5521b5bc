"""Checks of trials: what is left when the load has ended, and limits of the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from loadtest.frame.claims import Claim, Row
from loadtest.service.served import Served
from loadtest.trial.scene import Scene, Terms


def nothing_held(limit_s: float | Callable[[Terms], float]) -> Callable[[Scene], Iterable[str]]:
    """Return a check that sessions, leases and KV blocks are free soon after the last answer."""

    def check(scene: Scene) -> Iterable[str]:
        wait_s = limit_s(scene.terms) if callable(limit_s) else limit_s
        return scene.watched.wait_freed(wait_s)

    return check


def no_errors_logged(scene: Scene) -> Iterable[str]:
    """Return the first errors in the log of a service of our own."""
    if not isinstance(scene.service, Served):
        return []
    errors = [line for line in scene.service.log().splitlines() if " ERROR " in line]
    return [f"in the log: {line[:300]}" for line in errors[:10]]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A claim for every row of some ways: a statistic of its runs is within a limit.

    Attributes:
        measure: of the rows.
        at_least, at_most: the limit, or the name of the term that has it; one of them.
        workload, way: patterns of the rows.
        to: the way whose statistic divides; "": none does.
        by: the statistic.
    """

    measure: str
    at_least: float | str | None = None
    at_most: float | str | None = None
    workload: str = "*"
    way: str = "*"
    to: str = ""
    by: Callable[[Sequence[float]], float] = statistics.median

    def __call__(self, rows: Sequence[Row], terms: Terms) -> Iterator[Claim]:
        """Yield the claims that the rows have figures for."""
        goal = self.at_least if self.at_most is None else self.at_most
        assert goal is not None, f"a limit of {self.measure} has no value"
        for row in rows:
            value = self._value(row, rows)
            if value is None:
                continue
            over = f" / {self.to}" if self.to else ""
            yield Claim(
                f"{row['workload']}, {row['way']}{over}: {self.measure}",
                value,
                "at least" if self.at_most is None else "at most",
                float(getattr(terms, goal) if isinstance(goal, str) else goal),
            )

    def _value(self, row: Row, rows: Sequence[Row]) -> float | None:
        is_meant = fnmatchcase(row["workload"], self.workload) and fnmatchcase(row["way"], self.way)
        if not is_meant or self.measure not in row["runs"]:
            return None
        own = self.by(row["runs"][self.measure])
        if not self.to:
            return own
        for other in rows:
            if (other["workload"], other["way"]) == (row["workload"], self.to):
                return own / self.by(other["runs"][self.measure])
        return None
