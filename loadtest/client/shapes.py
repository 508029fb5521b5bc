"""Numbers of users over time (ramp and spike), and arrival times of a trace.

These are plain functions of time without locust, so that they can be tested and plotted.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ramp:
    """Users rise evenly to `users` over `rise_s`, stay for `hold_s`, then all go."""

    users: int
    rise_s: float
    hold_s: float

    def users_at(self, time_s: float) -> int | None:
        """Users wanted; None: the run is over."""
        if time_s >= self.rise_s + self.hold_s:
            return None
        return max(1, min(self.users, round(self.users * time_s / self.rise_s)))


@dataclass(frozen=True)
class Spike:
    """`users` all along, but `factor` times as many in the middle third of `length_s`."""

    users: int
    factor: float
    length_s: float

    def users_at(self, time_s: float) -> int | None:
        """Users wanted; None: the run is over."""
        if time_s >= self.length_s:
            return None
        is_middle = self.length_s / 3 <= time_s < 2 * self.length_s / 3
        return round(self.users * self.factor) if is_middle else self.users


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: when, seconds after the start, and of which kind."""

    at_s: float
    kind: str


def read_trace(path: Path, kinds: Sequence[str]) -> list[Arrival]:
    """Arrivals of a CSV file with the columns `at_s` and `kind`, in order of time.

    Raises:
        ValueError: names the line and what is wrong with it.
    """
    arrivals = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or not {"at_s", "kind"} <= set(reader.fieldnames):
            raise ValueError(f"{path} must have the columns at_s,kind, got {reader.fieldnames}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            try:
                at_s = float(row["at_s"])
            except (TypeError, ValueError):
                raise ValueError(f"{where}: at_s must be a number, got {row['at_s']!r}") from None
            if not 0 <= at_s < float("inf"):
                raise ValueError(f"{where}: at_s must be 0 or more seconds, got {at_s}")
            if row["kind"] not in kinds:
                raise ValueError(
                    f"{where}: kind must be one of {', '.join(kinds)}, got {row['kind']!r}"
                )
            arrivals.append(Arrival(at_s, row["kind"]))
    if not arrivals:
        raise ValueError(f"{path} has no arrivals")
    return sorted(arrivals, key=lambda arrival: arrival.at_s)
