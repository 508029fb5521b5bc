"""Large changes of the code, and which of them a kept result is older than.

A result has the day it was measured, not its commit. One that is measured anew has a later day, and
what the page says of its age goes by itself. Add a line at the end after a large change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _of_any_pair(name: str) -> bool:
    return True


def _of_the_demo(name: str) -> bool:
    return not any(other in name for other in ("smollm2", "349m", "kinds"))


def _of_many_streams(name: str) -> bool:
    return not name.startswith(("kinds", "llama"))


def _of_no_simulation_or_scenarios(name: str) -> bool:
    """Return whether it was not measured anew with a change of the day before."""
    anew = ("scenarios-demo", "simulated", "ahead-simulated")
    return not name.startswith(anew) and name not in ("faults", "draws", "constrained-smollm2")


def _of_sampled_texts(name: str) -> bool:
    return "simulated" not in name and name not in ("faults", "draws")


@dataclass(frozen=True, slots=True)
class Change:
    """A change that figures may depend on.

    Attributes:
        day: the first day of which every kept result has it (ISO).
        name: as it follows "Measured before".
        concerns: whether the result of this name is of code that it touches.
    """

    day: str
    name: str
    concerns: Callable[[str], bool] = _of_any_pair


CHANGES = (
    Change("2026-11-23", "the compiled products"),
    Change("2026-11-23", "suffix decoding and forced text"),
    Change("2026-11-23", "the demo's present draft model", _of_the_demo),
    Change("2026-11-24", "the planner by whole rounds"),
    Change("2026-11-25", "heads, trees, draft swaps and look-aheads"),
    Change("2026-11-26", "the planner with probes of one round"),
    Change("2026-11-28", "the planner by whole texts"),
    Change("2026-11-30", "passes that wait by a router's word", _of_many_streams),
    Change(
        "2026-12-01", "plain decoding measured once all go on alone", _of_no_simulation_or_scenarios
    ),
    Change("2026-12-01", "draws by a kernel on CPUs", _of_sampled_texts),
)


def age(name: str, day: str) -> str:
    """Return the changes that a result of `day` was measured before; "" where there are none."""
    missed = [one.name for one in CHANGES if day < one.day and one.concerns(name)]
    return f"Measured before: {'; '.join(missed)}." if missed else ""
