"""What engines take now, measured while serving and shared by all sessions of a router.

Passes of the target by rows, steps of each drafter by sessions. What a round takes beyond them is
measured where rounds are planned (`measured.Overheads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.costs.table import CostTable
from models.protocol.messages import Proposal
from router.ports import DrafterTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Implements `joint.Costs` for a round that certain drafters draft for."""

    pass_ms: Callable[[float], float]
    step_ms: Callable[[float], float]


class PassCosts:
    """Running measurements. Drafters whose drafts are free have no steps."""

    def __init__(self) -> None:
        self._passes = CostTable()
        self._steps: dict[str, CostTable] = {}  # by drafter
        self._newest_pass = (0, 0.0)

    def is_known(self, drafter: DrafterTraits) -> bool:
        """Whether passes and the steps of this drafter have been measured."""
        return not self._passes.is_empty and (drafter.is_free or drafter.name in self._steps)

    def observe_pass(self, num_rows: int, pass_ms: float) -> bool:
        """Take in one target pass of `num_rows` rows, all sessions together.

        Returns whether it is news: each session of a pass reports it, with the same time.
        """
        if (num_rows, pass_ms) == self._newest_pass or num_rows <= 0 or pass_ms <= 0.0:
            return False
        self._newest_pass = (num_rows, pass_ms)
        self._passes.observe(num_rows, pass_ms)
        return True

    def observe_draft(self, drafter: DrafterTraits, proposal: Proposal) -> None:
        """Take in one proposal of `drafter`."""
        if not drafter.is_free and proposal.step_ms > 0.0:
            steps = self._steps.setdefault(drafter.name, CostTable())
            steps.observe(max(1, proposal.timing.num_sessions), proposal.step_ms)

    def pass_ms(self, num_rows: float) -> float:
        """Expected time of a target pass of so many rows."""
        return self._passes.at(num_rows)

    def step_ms(self, name: str, num_sessions: float) -> float:
        """Expected time of a step of the drafter `name` for so many sessions."""
        steps = self._steps.get(name)
        return 0.0 if steps is None else steps.at(num_sessions)

    def of_round(self, names: Iterable[str]) -> RoundCosts:
        """What engines take in a round that the drafters `names` draft for.

        They work side by side and the round waits for the slowest: steps of 2 ms and of 5 ms make
        a step of 5 ms.
        """
        tables = [self._steps[name] for name in names if name in self._steps]
        return RoundCosts(
            pass_ms=self._passes.at,
            step_ms=tables[0].at if len(tables) == 1 else _slowest(tables),
        )


def _slowest(tables: list[CostTable]) -> Callable[[float], float]:
    return lambda num_sessions: max((table.at(num_sessions) for table in tables), default=0.0)
