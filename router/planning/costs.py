"""What rounds cost now, measured while serving and shared by all sessions of a router.

Passes of the target by rows, steps of each drafter by sessions, and what a round waits beyond
them: links, queues, batch forming, the router's own work. Waits are kept apart by kind of round,
because a session whose target goes on alone misses no pass and one that goes out drafting may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from models.costs.running_mean import running_mean
from models.costs.table import CostTable
from models.protocol.messages import Proposal, Verdict
from router.ports import DrafterTraits

# Weight of the newest wait in its running value. Sessions that are out of step wait long for each
# other, which is no reason to draft otherwise: a wait counts by what it is when things go well.
_RISE, _FALL = 0.01, 0.1
# What a further row of a draft pass costs before any was measured, in steps.
_ROW_SHARE = 0.15
_ROW_WEIGHT = 0.05  # of the newest measurement in their running mean


@dataclass(slots=True)
class _DrafterCosts:
    """What one drafter costs: a token by sessions, and the wait for a draft beyond them.

    A token takes a step, or less where a guess of the draft saved some. For what a further guess is
    worth: the newest step, its sessions, and what a row of a guess takes.
    """

    steps: CostTable = field(default_factory=CostTable)
    wait_ms: float | None = None
    step_ms: float = 0.0
    num_sessions: int = 1
    row_ms: float | None = None

    def observe(self, proposal: Proposal, num_guessed: int, num_right: int) -> None:
        """Take in what the tokens of a draft took."""
        timing, num_tokens = proposal.timing, len(proposal.tokens)
        self.step_ms, self.num_sessions = proposal.step_ms, max(1, timing.num_sessions)
        token_ms = proposal.step_ms
        if num_guessed > 0 and num_tokens > 0:
            # The last token of a guess that is right throughout comes with a further one, if it is
            # no eos; a step after another sampled all others.
            num_steps = num_tokens - 1 - min(num_right, num_tokens - 1)
            guess_ms = timing.pass_ms - num_steps * self.step_ms
            row_ms = max(0.0, guess_ms - self.step_ms) / num_guessed
            self.row_ms = running_mean(self.a_row_ms, row_ms, _ROW_WEIGHT)
            token_ms = timing.pass_ms / num_tokens
        self.steps.observe(self.num_sessions, token_ms)

    @property
    def a_row_ms(self) -> float:
        """What a row of a guess takes: measured, else a share of a step."""
        return _ROW_SHARE * self.step_ms if self.row_ms is None else self.row_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Implements `joint.Costs` for a round that certain drafters draft for."""

    pass_ms: Callable[[float], float]
    step_ms: Callable[[float], float]
    draft_wait_ms: float
    verify_wait_ms: float
    plain_wait_ms: float


class PassCosts:
    """Running measurements. Drafters whose drafts are free have neither steps nor waits."""

    def __init__(self) -> None:
        self._passes = CostTable()
        self._drafters: dict[str, _DrafterCosts] = {}
        self._verify_wait_ms: float | None = None
        self._plain_wait_ms: float | None = None
        self._newest_pass = (0, 0.0)

    def is_known(self, drafter: DrafterTraits) -> bool:
        """Whether passes and the steps of this drafter have been measured."""
        return not self._passes.is_empty and (drafter.is_free or drafter.name in self._drafters)

    def observe_pass(self, num_rows: int, pass_ms: float) -> bool:
        """Take in one target pass of `num_rows` rows, all sessions together.

        Returns whether it is news: each session of a pass reports it, with the same time.
        """
        if (num_rows, pass_ms) == self._newest_pass or num_rows <= 0 or pass_ms <= 0.0:
            return False
        self._newest_pass = (num_rows, pass_ms)
        self._passes.observe(num_rows, pass_ms)
        return True

    def observe_draft(
        self,
        drafter: DrafterTraits,
        proposal: Proposal,
        elapsed_ms: float,
        num_guessed: int = 0,
        num_right: int = 0,
    ) -> None:
        """Take in one proposal of `drafter` that came after `elapsed_ms`.

        It was sent a guess of so many tokens, of which so many were right.
        """
        if drafter.is_free or proposal.step_ms <= 0.0:
            return
        costs = self._drafters.setdefault(drafter.name, _DrafterCosts())
        costs.observe(proposal, num_guessed, num_right)
        costs.wait_ms = _mean(costs.wait_ms, max(0.0, elapsed_ms - proposal.timing.pass_ms))

    def observe_verify(self, verdict: Verdict, elapsed_ms: float, num_drafted: int) -> None:
        """Take in the first verdict of a round, `elapsed_ms` after it was asked for."""
        wait_ms = max(0.0, elapsed_ms - verdict.timing.pass_ms)
        if num_drafted > 0:
            self._verify_wait_ms = _mean(self._verify_wait_ms, wait_ms)
        else:
            self._plain_wait_ms = _mean(self._plain_wait_ms, wait_ms)

    def halve_waits(self) -> None:
        """Believe less in the waits of rounds with a draft: they are of long ago, or of a start."""
        if self._verify_wait_ms is not None:
            self._verify_wait_ms /= 2
        for costs in self._drafters.values():
            if costs.wait_ms is not None:
                costs.wait_ms /= 2

    def pass_ms(self, num_rows: float) -> float:
        """Expected time of a target pass of so many rows."""
        return self._passes.at(num_rows)

    def step_ms(self, name: str, num_sessions: float) -> float:
        """Expected time of a step of the drafter `name` for so many sessions."""
        costs = self._drafters.get(name)
        return 0.0 if costs is None else costs.steps.at(num_sessions)

    def guess_price(self, name: str) -> float:
        """What a token of a guess must survive with to be worth its row in a draft pass.

        A right token saves the session its part of a step; 1.0, so none, while nothing is known.
        """
        costs = self._drafters.get(name)
        if costs is None or costs.step_ms <= 0.0:
            return 1.0
        return costs.a_row_ms * costs.num_sessions / costs.step_ms

    def draft_wait_ms(self, name: str) -> float:
        """From asking the drafter `name` to having its draft, beyond its steps."""
        costs = self._drafters.get(name)
        return 0.0 if costs is None else costs.wait_ms or 0.0

    @property
    def verify_wait_ms(self) -> float:
        """From asking for a draft's verdict to having it, beyond the pass."""
        return _either(self._verify_wait_ms, self._plain_wait_ms)

    @property
    def plain_wait_ms(self) -> float:
        """The same for the first token of a round without a draft."""
        return _either(self._plain_wait_ms, self._verify_wait_ms)

    def of_round(self, names: Iterable[str]) -> RoundCosts:
        """What a round costs that the drafters `names` draft for.

        They work side by side and the round waits for the slowest: steps of 2 ms and of 5 ms make
        a step of 5 ms.
        """
        costs = [self._drafters[name] for name in names if name in self._drafters]
        tables = [each.steps for each in costs]
        return RoundCosts(
            pass_ms=self._passes.at,
            step_ms=tables[0].at if len(tables) == 1 else _slowest(tables),
            draft_wait_ms=max((each.wait_ms or 0.0 for each in costs), default=0.0),
            verify_wait_ms=self.verify_wait_ms,
            plain_wait_ms=self.plain_wait_ms,
        )


def _slowest(tables: list[CostTable]) -> Callable[[float], float]:
    return lambda num_sessions: max((table.at(num_sessions) for table in tables), default=0.0)


def _mean(mean: float | None, value: float) -> float:
    if mean is None:
        return value
    return mean + (_RISE if value > mean else _FALL) * (value - mean)


def _either(mean: float | None, other: float | None) -> float:
    return mean if mean is not None else other or 0.0
