"""Sessions and routers in simulated time: the router's own planners, acceptance by dice.

A session does what `router.loop` does, without tokens: plan, draft, verify, learn. The acceptance
of a draft token is sampled with a probability that may differ by session and over time. When a
request has all its tokens the next one takes its place, so the load stays the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.simulate.engines import Events, Machine, SimulatedDraft, SimulatedTarget
from models.protocol.messages import Proposal, Timing
from router.drafters.draft_model import DRAFT_MODEL
from router.planning.costs import PassCosts
from router.planning.round_plan import RoundPlan
from router.ports import DrafterTraits
from router.rounds import SessionPlanner

Acceptance = Callable[[float], float]  # probability of a draft token, by time in ms


@dataclass(frozen=True, kw_only=True)
class RequestKind:
    """A kind of request that a client sends again and again."""

    acceptance: Acceptance
    drafter: DrafterTraits | None = DRAFT_MODEL.traits
    num_tokens: int = 192


class SimulatedRouter:
    """One router process: its messages wait for each other."""

    def __init__(self, events: Events, machine: Machine) -> None:
        self._events = events
        self._machine = machine
        self._free_at_ms = 0.0

    def deliver(self, action: Callable[[], None]) -> None:
        """Have `action` happen when a message sent now was taken off the link and worked on."""
        self._events.after(self._machine.net_ms, lambda: self._work(action))

    def _work(self, action: Callable[[], None]) -> None:
        begin_ms = max(self._events.now_ms, self._free_at_ms)
        self._free_at_ms = begin_ms + self._machine.router_ms
        self._events.after(self._free_at_ms - self._events.now_ms, action)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything a session meets."""

    events: Events
    machine: Machine
    random_: random.Random
    target: SimulatedTarget
    draft: SimulatedDraft


class SimulatedClient:
    """Sends one request after the other through one router.

    Args:
        new_planner: what a new session's rounds are planned by, and where costs are noted.
    """

    def __init__(
        self,
        name: str,
        world: World,
        router: SimulatedRouter,
        kind: RequestKind,
        new_planner: Callable[[DrafterTraits | None], tuple[SessionPlanner, PassCosts]],
    ) -> None:
        self._name = name
        self._world = world
        self._router = router
        self._kind = kind
        self._new_planner = new_planner
        self._num_requests = 0
        self._num_rounds = 0
        self.num_tokens = 0
        self._begin()

    def _begin(self) -> None:
        self._num_requests += 1
        self._session_id = f"{self._name}-{self._num_requests}"
        self._planner, self._costs = self._new_planner(self._kind.drafter)
        self._num_left = self._kind.num_tokens
        self._is_first = True
        self._asked: RoundPlan | None = None
        self._began_ms, self._answered_ms, self._num_new = 0.0, self._world.events.now_ms, 0
        self._router.deliver(self._round)

    def _end(self) -> None:
        self._planner.leave(self._kind.num_tokens)
        self._world.target.forget(self._session_id)
        self._world.draft.forget(self._session_id)
        self._begin()

    def _round(self) -> None:
        drafter, began_ms = self._kind.drafter, self._world.events.now_ms
        if self._asked is not None:
            self._planner.observe_round(self._asked, self._num_new, began_ms - self._began_ms)
        # The draft model reads the prompt first.
        plan = self._planner.plan(drafter, self._num_left - 1, is_ready=not self._is_first)
        self._began_ms, self._num_new = began_ms, 0
        self._asked = None if self._is_first else plan
        if plan.num_draft_tokens == 0:
            self._verify(plan, 0)
            return
        if drafter is not None:
            self._propose(
                drafter, plan.num_draft_tokens, lambda drafted: self._verify(plan, drafted)
            )

    def _propose(self, drafter: DrafterTraits, length: int, then: Callable[[int], None]) -> None:
        if drafter.is_free:
            then(length)
            return
        session_id = self._session_id

        def take(num_drafted: int, timing: Timing, step_ms: float) -> None:
            def learn() -> None:
                if session_id == self._session_id:
                    proposal = Proposal(
                        session_id=session_id,
                        seq=0,
                        tokens=[0] * num_drafted,
                        timing=timing,
                        step_ms=step_ms,
                    )
                    self._costs.observe_draft(drafter, proposal)
                    self._planner.observe_steps(drafter, timing)
                    then(num_drafted)

            self._router.deliver(learn)

        draft = self._world.draft
        self._world.events.after(
            self._world.machine.net_ms, lambda: draft.propose(session_id, length, take)
        )

    def _verify(self, plan: RoundPlan, num_drafted: int) -> None:
        run_on = max(0, min(plan.run_on, self._num_left - 1 - num_drafted))
        self._num_rounds += 1
        session_id, this_round = self._session_id, self._num_rounds

        def take(part: int, timing: Timing, is_last: bool) -> None:
            def learn() -> None:
                if this_round == self._num_rounds:
                    self._answered_ms = self._world.events.now_ms
                    self._judge(num_drafted, part, timing)
                    if self._num_left <= 0:
                        self._end()
                    elif is_last or self._planner.is_awaited:
                        self._round()

            self._router.deliver(learn)

        target, away_ms = self._world.target, self._world.events.now_ms - self._answered_ms
        self._world.events.after(
            self._world.machine.net_ms,
            lambda: target.verify(session_id, num_drafted, run_on, away_ms, take),
        )

    def _judge(self, num_drafted: int, part: int, timing: Timing) -> None:
        num_accepted = self._accepted(num_drafted) if part == 0 else 0
        committed = min(1 + num_accepted, self._num_left)
        self._num_left -= committed
        self.num_tokens += committed
        self._num_new += committed
        is_first, self._is_first = self._is_first, False
        if is_first:
            return
        if self._costs.observe_pass(timing.num_rows, timing.pass_ms):
            self._planner.observe_pass(timing)
        if part == 0 and num_drafted > 0 and self._kind.drafter is not None:
            self._planner.observe(self._kind.drafter, num_drafted, num_accepted)

    def _accepted(self, num_drafted: int) -> int:
        probability = self._kind.acceptance(self._world.events.now_ms)
        num_accepted = 0
        while num_accepted < num_drafted and self._world.random_.random() < probability:
            num_accepted += 1
        return num_accepted
