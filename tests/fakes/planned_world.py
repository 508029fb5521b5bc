"""Planned sessions of a router that go round by round on a machine, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from models.protocol.messages import Proposal, Timing
from router.drafters.draft_model import DRAFT_MODEL
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.costs import PassCosts
from router.planning.round_plan import Mode, RoundPlan

MODEL = DRAFT_MODEL.traits


@dataclass(frozen=True)
class Machine:
    """Times of passes and steps, and how much of a promise the rounds with drafts keep."""

    base_ms: float = 20.0
    row_ms: float = 0.1
    step_ms: float = 1.0
    acceptance: float = 1.0  # share of each draft that is accepted
    friction: float = 1.0  # times as long as the parts of a round with a draft add up to

    def costs(self) -> PassCosts:
        costs = PassCosts()
        for turn in range(30):
            for num_rows in (1, 2, 4, 8, 16, 32, 64):
                costs.observe_pass(num_rows, self.pass_ms(num_rows) + 1e-6 * turn)
        timing = Timing(pass_ms=self.step_ms, num_sessions=1)
        proposal = Proposal(session_id="s", seq=0, tokens=[1], timing=timing, step_ms=self.step_ms)
        costs.observe_draft(MODEL, proposal)
        return costs

    def pass_ms(self, num_rows: int) -> float:
        return self.base_ms + self.row_ms * num_rows

    def round_ms(self, plan: RoundPlan, num_sessions: int) -> float:
        k = plan.num_draft_tokens
        if k == 0:
            return (1 + plan.run_on) * self.pass_ms(num_sessions)
        num_rows = num_sessions + k if plan.is_probe else num_sessions * (1 + k)
        drafted_ms = self.friction * (k * self.step_ms + self.pass_ms(num_rows))
        return drafted_ms + plan.run_on * self.pass_ms(num_sessions)


CHEAP, DEAR = Machine(), Machine(base_ms=2.0, row_ms=10.0, step_ms=20.0)


@dataclass
class World:
    """Sessions of one router that go round by round on a machine, all in step."""

    machine: Machine
    now_s: float = 0.0
    tick_s: float = 0.0  # that each look at the clock takes
    planner: RouterPlanner = field(init=False)
    pool: AcceptancePool = field(init=False)

    def __post_init__(self) -> None:
        self.planner = RouterPlanner(self.machine.costs(), self.clock)
        self.pool = AcceptancePool(MODEL.prior_acceptance["free"])

    def clock(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def add(self, replica: Callable[[], str] = lambda: "target") -> PlannedSession:
        return PlannedSession(
            self.planner,
            {MODEL.name: AcceptanceEstimate(self.pool)},
            replica,
            max_length=64,
            run_on=32,
        )

    def round(self, sessions: list[PlannedSession], *, is_ready: bool = True) -> list[RoundPlan]:
        """One round of all of them; returns what was planned."""
        plans = [session.plan(MODEL, 8, is_ready=is_ready) for session in sessions]
        elapsed = [self.machine.round_ms(plan, len(sessions)) for plan in plans]
        self.now_s += max(elapsed) / 1e3
        for session, plan, elapsed_ms in zip(sessions, plans, elapsed, strict=True):
            k = plan.num_draft_tokens
            num_accepted = round(self.machine.acceptance * k)
            if k > 0:
                session.observe(MODEL, k, num_accepted)
            session.observe_round(plan, 1 + num_accepted + plan.run_on, elapsed_ms)
        return plans

    def rounds(self, sessions: list[PlannedSession], number: int) -> list[RoundPlan]:
        return [plan for _ in range(number) for plan in self.round(sessions)]

    def mode(self, replica: str = "target") -> Mode:
        return self.planner.replica(replica).mode


def drafted(plans: list[RoundPlan]) -> list[RoundPlan]:
    return [plan for plan in plans if plan.num_draft_tokens > 0]
