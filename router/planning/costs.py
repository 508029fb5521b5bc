"""Measures the current costs of engines while serving, shared by all sessions of a router.

Passes of the target by rows, steps of each drafter by sessions. The rest of a round's time is
measured where rounds are planned (`overhead.Overhead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from models.costs.running_mean import running_mean
from models.costs.table import CostTable
from models.protocol.messages import Proposal
from router.ports import DrafterTraits

# The cost of a further row of a draft pass before any was measured, in steps.
_ROW_SHARE = 0.15
_ROW_WEIGHT = 0.05  # weight of the newest measurement in their running mean
_READY_WEIGHT = 0.1  # of the newest draft in the share of tokens that are there ahead


@dataclass(slots=True)
class _DrafterCosts:
    """The costs of one drafter: the time of a token, by sessions.

    A token takes a step, or less where a guess of the draft saved some. For what a further guess is
    worth: the newest step, its sessions, and what a row of a guess takes.
    """

    steps: CostTable = field(default_factory=CostTable)
    step_ms: float = 0.0
    num_sessions: int = 1
    row_ms: float | None = None
    ready: list[float] = field(default_factory=list)  # by place: share of tokens that came ahead

    def observe(
        self, proposal: Proposal, num_guessed: int, num_right: int, waited_ms: float
    ) -> None:
        """Take in what the tokens of a draft took, the wait for a guess of them included."""
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
            token_ms = (waited_ms + timing.pass_ms) / num_tokens
        if timing.num_sessions > 0:  # else it took no step
            self.steps.observe(self.num_sessions, token_ms)

    def note_ahead(self, proposal: Proposal) -> None:
        """Note which tokens of a draft were waited for, while drafts are made ahead.

        Means are kept. A table of times keeps medians, and most drafts may wait for nothing.
        """
        for place in range(len(proposal.tokens)):
            if place == len(self.ready):  # never asked for: like the token before it
                self.ready.append(self.ready[-1] if self.ready else 0.0)
            is_ready = float(place < proposal.num_ahead)
            self.ready[place] = running_mean(self.ready[place], is_ready, _READY_WEIGHT)

    def num_waited(self, depth: float) -> float:
        """Return the steps that a draft of so many tokens waits for, while some are made ahead."""
        whole = int(depth)
        shares = [*self.ready[: whole + 1]]
        shares += [shares[-1] if shares else 0.0] * (whole + 1 - len(shares))
        return depth - sum(shares[:whole]) - (depth - whole) * shares[whole]

    @property
    def a_row_ms(self) -> float:
        """The time of a row of a guess: measured, else a share of a step."""
        return _ROW_SHARE * self.step_ms if self.row_ms is None else self.row_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Implements `joint.Costs` for a round that certain drafters draft for."""

    pass_ms: Callable[[float], float]
    draft_ms: Callable[[float, float], float]


class PassCosts:
    """Running measurements. Drafters whose drafts are free have no steps."""

    def __init__(self) -> None:
        self._passes = CostTable()
        self._drafters: dict[str, _DrafterCosts] = {}
        self._newest_pass = (0, 0.0)

    def is_known(self, drafter: DrafterTraits) -> bool:
        """Return whether passes and the steps of this drafter have been measured."""
        costs = self._drafters.get(drafter.name)
        has_steps = costs is not None and not costs.steps.is_empty
        return not self._passes.is_empty and (drafter.is_free or has_steps)

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
        num_guessed: int = 0,
        num_right: int = 0,
        guess_ms: float = 0.0,
        *,
        is_ahead: bool = True,
    ) -> None:
        """Take in one proposal of `drafter`.

        It was sent a guess of `num_guessed` tokens, of which `num_right` were right. The wait for
        the guess took `guess_ms`. `is_ahead`: drafts may be made ahead now.
        """
        if not drafter.is_free and proposal.step_ms > 0.0:
            costs = self._drafters.setdefault(drafter.name, _DrafterCosts())
            costs.observe(proposal, num_guessed, num_right, guess_ms)
            if is_ahead:
                costs.note_ahead(proposal)

    def observe_late(self, drafter: DrafterTraits, waited_ms: float) -> None:
        """Take in that no draft came within `waited_ms`, which a step is taken to need."""
        if not drafter.is_free:
            costs = self._drafters.setdefault(drafter.name, _DrafterCosts())
            if waited_ms > costs.steps.at(costs.num_sessions):
                costs.steps.observe(costs.num_sessions, waited_ms)

    def pass_ms(self, num_rows: float) -> float:
        """Expected time of a target pass of so many rows."""
        return self._passes.at(num_rows)

    def rows_price(self, num_rows: int, num_beside: int, num_sessions: int) -> float:
        """Return the price of further rows of a pass, in tokens of plain steps; 0.0 if not known.

        The pass has `num_beside` rows of `num_sessions` sessions, all of whom wait for it. A row
        costs at least the mean of all. Else it looks free where the measured curve is flat, and it
        is flat wherever a larger pass was quicker.
        """
        alone_ms, num_all = self.pass_ms(num_beside), num_beside + num_rows
        if alone_ms <= 0.0 or num_rows == 0:
            return 0.0
        whole_ms = self.pass_ms(num_all)
        mean_ms = num_rows * (whole_ms - self.pass_ms(1)) / (num_all - 1)
        return num_sessions * max(whole_ms - alone_ms, mean_ms) / alone_ms

    def step_ms(self, name: str, num_sessions: float) -> float:
        """Expected time of a step of the drafter `name` for so many sessions."""
        costs = self._drafters.get(name)
        return 0.0 if costs is None else costs.steps.at(num_sessions)

    def guess_price(self, name: str) -> float:
        """Return the survival at which a token of a guess is worth its row in a draft pass.

        A right token saves the session its part of a step; 1.0, so none, while nothing is known.
        """
        costs = self._drafters.get(name)
        if costs is None or costs.step_ms <= 0.0:
            return 1.0
        return costs.a_row_ms * costs.num_sessions / costs.step_ms

    def step_share(self, name: str, larger: str) -> float:
        """Return the time of one drafter's step over another's; 0 while either is unknown."""
        costs, others = self._drafters.get(name), self._drafters.get(larger)
        if costs is None or others is None or others.step_ms <= 0.0:
            return 0.0
        return costs.step_ms / others.step_ms

    def of_round(self, names: Iterable[str], is_ahead: bool = False) -> RoundCosts:
        """Return the engines' costs of a round that the drafters `names` draft for.

        They work side by side and the round waits for the slowest. Steps of 2 ms and of 5 ms make a
        step of 5 ms. If drafts are made ahead, only the steps that are waited for count.
        """
        there = [self._drafters[name] for name in names if name in self._drafters]

        def draft_ms(depth: float, num_sessions: float) -> float:
            parts = [
                (one.num_waited(depth) if is_ahead else depth) * one.steps.at(num_sessions)
                for one in there
            ]
            return max(parts, default=0.0)

        return RoundCosts(pass_ms=self._passes.at, draft_ms=draft_ms)
